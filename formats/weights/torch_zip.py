"""The `pt` decoder: torch zip checkpoints, without running their pickle."""
