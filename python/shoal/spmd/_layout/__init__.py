"""Devices and processes, and the parts of tensors on them."""
