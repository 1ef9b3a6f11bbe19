"""Local tensors of DTensors, and the kernels' dtypes."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

# By dtype that the kernels support: its name in the kernels.
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def local(t: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, without autograd; a plain tensor is returned as it is."""
    if isinstance(t, DTensor):
        t = t._local_tensor
        if isinstance(t, AsyncCollectiveTensor):  # a collective's result, which may still be on its way
            t = t.wait()
    return t
