"""A sharded parameter: its mesh, its tensors and its gradient."""
