"""Optimizers for plain and sharded parameters, fused in C++ with the CPU's widest vectors; clipping by the norm of sharded gradients."""

from shoal.optim._adam import Adam, AdamW
from shoal.optim._clip import clip_grad_norm_
from shoal.optim._muon import Muon
from shoal.optim._sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Muon", "clip_grad_norm_"]
