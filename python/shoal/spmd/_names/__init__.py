"""torch_xla's names for Shoal's modules, and modules with torch_xla's names that use the public modules of shoal.spmd."""
