"""Ways into the memory of a GPU, and what this machine has of them."""
