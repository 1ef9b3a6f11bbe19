"""Marks (shardings that the program gives to tensors), and batches on their way to the device."""
