"""The actors of a loader's graph, one a file."""
