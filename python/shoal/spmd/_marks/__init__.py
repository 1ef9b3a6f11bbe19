"""Marks of tensors, and batches on their way to the device."""
