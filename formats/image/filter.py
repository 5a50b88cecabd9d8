"""Filters: blur, median, sharpen, edges."""
