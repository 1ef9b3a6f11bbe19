"""Execution of operators, and the program's tensors on device ``xla:0``."""

from shoal.spmd._engine import dispatch, factories  # noqa: F401  the tensors' operators, and torch's factory functions
