"""What is inside data sets, and what is wrong with them: `dataio check`, `head`, `schema`, `stats` and `preview`."""
