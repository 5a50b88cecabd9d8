"""Colour transforms."""
