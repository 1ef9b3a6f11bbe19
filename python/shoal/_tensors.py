"""Tensors as torch has them inside: memory apart from its allocator's, DTensors without their constructor, and what a forward returns."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.utils import _apply_to_tensors

from shoal import _native

_SMALL = 64 << 10  # bytes: not worth pages of their own


def long_lived(shape: torch.Size, dtype: torch.dtype, stride: tuple[int, ...] | None = None, *, touched: bool = False) -> torch.Tensor:
    """Zeros on the CPU that stay for many steps. They lie in pages of their own, huge ones where they are large: among the activations that
    malloc hands out they would keep the holes between them from being used again. ``stride``: of a tensor without gaps. ``touched``:
    the system gives all pages now, not one by one as they are written."""
    nbytes = shape.numel() * dtype.itemsize
    if nbytes < _SMALL:
        zeros = torch.zeros(shape, dtype=dtype, device="cpu")
        return zeros if stride is None else zeros.as_strided(shape, stride)
    flat = _native.private_memory(nbytes, touched).view(dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


def dtensor(local: torch.Tensor, spec: DTensorSpec, requires_grad: bool = False) -> DTensor:
    """``DTensor.__init__`` does nothing, but imports torch._dynamo first: half a second and 24 MiB in every rank."""
    return DTensor.__new__(DTensor, local, spec, requires_grad=requires_grad)


def dtensor_parameter(local: torch.Tensor, spec: DTensorSpec, requires_grad: bool) -> torch.nn.Parameter:
    """``nn.Parameter(dtensor(...))`` without its detach(), whose way through DTensor's dispatcher imports torch._dynamo, too."""
    t = dtensor(local, spec, requires_grad)
    t._is_param = True  # what makes a subclass's instance a Parameter
    return t


def with_dtype(spec: DTensorSpec, dtype: torch.dtype) -> DTensorSpec:
    """The same placements of a tensor of another dtype."""
    meta = spec.tensor_meta
    if meta is None or meta.dtype == dtype:
        return spec
    return DTensorSpec(spec.mesh, spec.placements, tensor_meta=TensorMeta(meta.shape, meta.stride, dtype))


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Of whatever a forward returns: lists, mappings, dataclasses."""
    if torch.is_tensor(output):
        return [output]
    found: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        found.append(t)
        return t

    _apply_to_tensors(keep, output)
    return found
