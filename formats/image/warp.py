"""Affine and perspective warps."""
