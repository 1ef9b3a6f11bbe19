"""Tensors as torch has them inside: memory apart from its allocator's, DTensors without their constructor, and what a forward returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.utils import _apply_to_tensors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from shoal import _native
from shoal.exceptions import Unimplemented

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


@contextmanager
def lasting() -> Iterator[None]:
    """For tensors that outlive the evaluation or the transform of torch.func in which they are made: without inference mode, gradients and
    transforms."""
    with ExitStack() as left:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            left.enter_context(temporarily_clear_interpreter_stack())
        left.enter_context(torch.inference_mode(False))
        left.enter_context(torch.no_grad())
        yield


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


_NOTHING = torch.zeros(1, device="cpu")  # where a tensor without elements lies


def is_wrapper(t: torch.Tensor) -> bool:
    """Whether ``t`` is of a subclass whose elements lie in other tensors: it has no memory of its own."""
    return type(t) is not torch.Tensor and is_traceable_wrapper_subclass(t)


def in_memory(t: torch.Tensor) -> torch.Tensor:
    """A contiguous strided tensor of the same values: kernels read it by its address. Of a wrapper subclass, whose elements lie in other
    tensors, it is what ``copy_`` into a plain tensor gives, as FSDP2's reduction does."""
    if t.layout != torch.strided:
        t = t.to_dense()
    if is_wrapper(t):
        return torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)
    return t.contiguous()


def address_of(t: torch.Tensor) -> int:
    """Where the elements of a tensor lie: never 0, which stands for no tensor. Raises Unimplemented when it has no memory of its own."""
    address = t.data_ptr()
    if address == 0:
        if t.numel() > 0:
            raise Unimplemented(f"a {type(t).__name__} has no memory of its own", hint="pass a plain torch.Tensor of the same values")
        address = _NOTHING.data_ptr()
    return address


def tensors_in(output: Any) -> list[torch.Tensor]:
    """The tensors in whatever a forward returns: lists, mappings, dataclasses."""
    if torch.is_tensor(output):
        return [output]
    found: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        found.append(t)
        return t

    _apply_to_tensors(keep, output)
    return found
