"""Tables: Parquet and Feather (Arrow IPC) files, from and to any URI."""
