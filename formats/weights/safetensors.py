"""The `safetensors` decoder."""
