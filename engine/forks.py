"""`os.fork` in a process that uses the engine: what the child must renew.

Of the parent's threads only the one that forks lives on in the child, so a lock that another one held is held for ever
there. Whoever keeps a lock, a channel or a pool says here how the child gets one of its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_child(owner: T, renew: Callable[[T], None]) -> None:
    """Call `renew(owner)` in every process forked from this one, as long as `owner` lives.

    `renew` must not be bound to `owner`, and must not wait for anything.
    """
    _renewals[owner] = renew


def new_lock_in_child(owner: Any, attribute: str, make: Callable[[], Any]) -> None:
    """Give `owner` (an object or a module) a lock from `make` as its `attribute` in every forked process."""
    in_child(owner, lambda found: setattr(found, attribute, make()))


def _renew() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
