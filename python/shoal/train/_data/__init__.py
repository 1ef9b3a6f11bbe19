"""A loader's batches, divided among the workers."""
