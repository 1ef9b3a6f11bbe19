"""The memory of tensors as the native Communicator takes it, the native names of dtypes and reductions, and lists of tensors as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from shoal._objects.tensors import is_wrapper
from shoal.exceptions import InvalidArgument, Unimplemented

Memory = tuple[int, int]  # address and bytes

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
_FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
_FLOATS8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
DTYPES: dict[torch.dtype, str] = {getattr(torch, name): name for name in (*_INTEGERS, *_FLOATS, *_FLOATS8)}
_PARTS = {torch.complex64: "float32", torch.complex128: "float64"}  # complex numbers are added as pairs
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_TYPES = dist.ReduceOp.RedOpType
_SUM = _TYPES.SUM  # faster to compare with than a ReduceOp
_OPS: dict[dist.ReduceOp, str] = {
    dist.ReduceOp(getattr(_TYPES, name)): name.lower() for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
}


def op_of(op: object) -> str:
    """Returns the native name of torch's reduction; raises ``Unimplemented`` for others."""
    if op == _SUM:  # three times as fast as the look-up
        return "sum"
    if (name := _OPS.get(op)) is None:
        raise Unimplemented(f"reductions by {op} are not supported on the CPU", hint="sum, avg, min, max, product, band, bor or bxor")
    return name


def dtype_of(t: torch.Tensor) -> str:
    name = DTYPES.get(t.dtype)
    if name is None:
        raise Unimplemented(f"collectives of {t.dtype} are not supported", hint="view the tensor as uint8")
    return name


def reduced_dtype(t: torch.Tensor, op: str) -> str:
    """Returns the native dtype for a reduction of the tensor."""
    name = DTYPES.get(t.dtype) or dtype_of(t)
    if not name.startswith("complex"):
        return name
    if op not in ("sum", "avg"):
        raise Unimplemented(f"complex tensors have no {op}", hint="sum or avg")
    return _PARTS[t.dtype]


def is_simple(t: torch.Tensor) -> bool:
    """Returns True for a tensor whose memory an operation may use as it is."""
    return type(t) in _PLAIN and t.is_cpu and t.is_contiguous() and not t.is_neg() and not t.is_conj()


def plain(t: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with memory of its own: the tensor, or the result of a functional collective after its end."""
    if not isinstance(t, torch.Tensor):
        raise InvalidArgument(f"a {type(t).__name__} is not a tensor")
    if type(t) not in _PLAIN and is_wrapper(t):
        if not hasattr(t, "trigger_wait"):
            raise InvalidArgument(
                f"a collective of a {type(t).__name__}, whose elements lie in other tensors", hint="pass the inner tensors"
            )
        t = t.trigger_wait()
    if t.layout != torch.strided or t.is_quantized:
        raise Unimplemented(f"collectives of {t.layout} tensors are not supported", hint="pass a dense tensor")
    return t


def dense(t: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a contiguous copy of it."""
    if is_simple(t):
        return t
    return plain(t).detach().resolve_conj().resolve_neg().contiguous()


def written(t: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None] | None]:
    """Returns a dense tensor to write to, and a function that copies it to `t`, or None where both have one memory."""
    if is_simple(t):
        return t, None
    target = plain(t)
    buffer = dense(target)
    if buffer.data_ptr() == target.data_ptr():
        return buffer, None
    return buffer, lambda: _copy([target], [buffer])


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def memory(t: torch.Tensor) -> Memory:
    return t.data_ptr(), t.nbytes


NO_MEMORY: Memory = (0, 0)


def sizes_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [t.nbytes for t in tensors]


def _adjacent(tensors: Sequence[torch.Tensor]) -> bool:
    at = tensors[0].data_ptr()
    for t in tensors:
        if not is_simple(t) or t.data_ptr() != at:
            return False
        at += t.nbytes
    return True


def joined(tensors: Sequence[torch.Tensor]) -> tuple[object, Memory]:
    """Returns one memory with the elements of all tensors, one after the other, and the owner of that memory."""
    if not tensors:
        return None, NO_MEMORY
    if _adjacent(tensors):
        return tensors, (tensors[0].data_ptr(), sum(sizes_of(tensors)))
    whole = torch.cat([dense(t).view(-1) for t in tensors])
    return whole, memory(whole)


def joined_to_write(tensors: Sequence[torch.Tensor]) -> tuple[object, Memory, Callable[[], None] | None]:
    """Returns one memory for the elements of all tensors, one after the other, and its owner.

    Its third result is a function that copies the elements from there to the tensors, or None where the tensors have that memory.
    """
    if not tensors:
        return None, NO_MEMORY, None
    if _adjacent(tensors):
        return tensors, (tensors[0].data_ptr(), sum(sizes_of(tensors))), None
    targets = [plain(t) for t in tensors]
    whole = torch.empty(sum(t.numel() for t in targets), dtype=targets[0].dtype)
    parts = [part.view(t.shape) for part, t in zip(whole.split([t.numel() for t in targets]), targets, strict=True)]
    return whole, memory(whole), lambda: _copy(targets, parts)
