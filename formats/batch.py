"""Batch transforms."""
