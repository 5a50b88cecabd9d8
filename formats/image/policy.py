"""Augmentation policies."""
