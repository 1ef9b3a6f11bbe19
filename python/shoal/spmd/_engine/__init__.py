"""Execution of operators, and the program's tensors on device ``xla:0``."""
