"""Bounding boxes."""
