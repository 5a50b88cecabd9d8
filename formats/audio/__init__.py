"""Audio: the decoder and the spectral transforms."""
