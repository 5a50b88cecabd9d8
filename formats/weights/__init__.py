"""Files of named tensors: safetensors and torch checkpoints."""
