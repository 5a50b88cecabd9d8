import os as _os
if not _os.path.isdir(_os.path.join(__path__[0], "engine")):
    __path__.append(_os.path.dirname(__path__[0]))
