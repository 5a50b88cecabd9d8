"""Images: header parsing, decoding, geometry, and packing to normalised float planes."""
