"""Optimizers over shards: fused, in C++, with the widest vectors that the CPU has; and clipping by the norm of sharded gradients."""

from shoal.optim._adam import Adam, AdamW
from shoal.optim._sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
