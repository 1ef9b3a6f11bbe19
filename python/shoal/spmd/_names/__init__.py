"""torch_xla's names for Shoal's modules, and those that stand on the public modules."""
