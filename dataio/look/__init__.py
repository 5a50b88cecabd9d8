"""Looking at data: previews of queries, pipelines and files as pictures and tables, and figures over columns."""
