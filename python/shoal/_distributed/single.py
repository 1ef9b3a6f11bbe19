"""Collectives of one tensor, by their names of torch 2.13. Earlier versions know them by the former ones, which later versions deprecate."""

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
