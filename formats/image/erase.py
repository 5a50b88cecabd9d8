"""Erasing parts of an image."""
