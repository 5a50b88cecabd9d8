"""Bytes: URIs, readers, writers and transfers."""
