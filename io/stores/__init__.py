"""The stores: local files, object stores, web servers, the Hugging Face hub, and all that fsspec knows."""
