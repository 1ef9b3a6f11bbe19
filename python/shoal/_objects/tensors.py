"""Makes tensors outside of torch's allocator, and DTensors without their constructor; finds the tensors in a forward's output."""

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

_SMALL = 64 << 10  # bytes below which separate pages do not pay off


def long_lived(shape: torch.Size, dtype: torch.dtype, stride: tuple[int, ...] | None = None, *, touched: bool = False) -> torch.Tensor:
    """Returns a tensor of zeros on the CPU for many steps, in separate pages, huge ones for large tensors. In malloc's
    memory, between activations, the tensor would keep freed gaps from being joined and used again. ``stride``: must
    have no gaps. ``touched``: the kernel provides all pages now, not at the first writes."""
    nbytes = shape.numel() * dtype.itemsize
    if nbytes < _SMALL:
        zeros = torch.zeros(shape, dtype=dtype, device="cpu")
        return zeros if stride is None else zeros.as_strided(shape, stride)
    flat = _native.private_memory(nbytes, touched).view(dtype)
    return flat.view(shape) if stride is None else flat.as_strided(shape, stride)


@contextmanager
def lasting() -> Iterator[None]:
    """A context for tensors that outlive the current evaluation or torch.func transform: without inference mode, gradients and
    transforms."""
    with ExitStack() as left:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

            left.enter_context(temporarily_clear_interpreter_stack())
        left.enter_context(torch.inference_mode(False))
        left.enter_context(torch.no_grad())
        yield


def dtensor(local: torch.Tensor, spec: DTensorSpec, requires_grad: bool = False) -> DTensor:
    """Makes a DTensor without ``DTensor.__init__``, which only imports torch._dynamo: half a second and 24 MiB in every rank."""
    return DTensor.__new__(DTensor, local, spec, requires_grad=requires_grad)


def dtensor_parameter(local: torch.Tensor, spec: DTensorSpec, requires_grad: bool) -> torch.nn.Parameter:
    """Same as ``nn.Parameter(dtensor(...))`` without its detach(), which imports torch._dynamo in DTensor's dispatcher, too."""
    t = dtensor(local, spec, requires_grad)
    t._is_param = True  # makes an instance of a subclass a Parameter
    return t


def with_dtype(spec: DTensorSpec, dtype: torch.dtype) -> DTensorSpec:
    """Returns the spec with the same placements and another dtype."""
    meta = spec.tensor_meta
    if meta is None or meta.dtype == dtype:
        return spec
    return DTensorSpec(spec.mesh, spec.placements, tensor_meta=TensorMeta(meta.shape, meta.stride, dtype))


_NOTHING = torch.zeros(1, device="cpu")  # memory for the address of tensors without elements


def is_wrapper(t: torch.Tensor) -> bool:
    """True if ``t`` is of a wrapper subclass: its elements lie in other tensors, and it has no memory of its own."""
    return type(t) is not torch.Tensor and is_traceable_wrapper_subclass(t)


def in_memory(t: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous strided tensor of the same values, which kernels read by address. A tensor of a wrapper subclass is copied by
    ``copy_`` into a plain tensor, as in FSDP2's reduction."""
    if t.layout != torch.strided:
        t = t.to_dense()
    if is_wrapper(t):
        return torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)
    return t.contiguous()


def address_of(t: torch.Tensor) -> int:
    """The address of a tensor's elements; never 0, which means no tensor. Raises Unimplemented if it has no memory of its own."""
    address = t.data_ptr()
    if address == 0:
        if t.numel() > 0:
            raise Unimplemented(f"a {type(t).__name__} has no memory of its own", hint="pass a plain torch.Tensor of the same values")
        address = _NOTHING.data_ptr()
    return address


def tensors_in(output: Any) -> list[torch.Tensor]:
    """The tensors in the output of a forward, also in lists, mappings and dataclasses."""
    if torch.is_tensor(output):
        return [output]
    found: list[torch.Tensor] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        found.append(t)
        return t

    _apply_to_tensors(keep, output)
    return found
