"""Optimizers over shards: fused, in C++, with the widest vectors that the CPU has."""

from shoal.optim._adamw import AdamW

__all__ = ["AdamW"]
