"""The `audio` decoder."""
