"""Padding, patches and noise of tensors."""
