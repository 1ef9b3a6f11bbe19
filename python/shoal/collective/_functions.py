"""The collectives, as functions of tensors. The package's docstring explains the common arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shoal._objects.tensors import is_wrapper
from shoal.collective._group import Group, Work
from shoal.collective._group import group as _group
from shoal.exceptions import InvalidArgument, Unimplemented

AnyGroup = DeviceMesh | dist.ProcessGroup | Group | None
Op = str | dist.ReduceOp | dist.ReduceOp.RedOpType

_OPS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "product"}


def _op(op: Op) -> str:
    if isinstance(op, str):
        return op
    name = str(op).rpartition(".")[2]
    if name not in _OPS:
        raise Unimplemented(f"reductions by {name} are not supported", hint="sum, avg, min, max or product")
    return _OPS[name]


def _check(*tensors: torch.Tensor) -> None:
    for t in tensors:
        if not isinstance(t, torch.Tensor):
            raise InvalidArgument(f"a {type(t).__name__} is not a tensor")
        if t.device != tensors[0].device:
            raise InvalidArgument(f"one tensor is on {tensors[0].device}, another one on {t.device}")
        if is_wrapper(t):
            raise Unimplemented(
                f"collectives of a {type(t).__name__}, whose elements lie in other tensors, are not supported", hint="pass the inner ones"
            )
        if t.layout != torch.strided or t.is_quantized:
            raise Unimplemented(f"collectives of {t.layout} tensors are not supported", hint="pass a dense tensor")


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _memory(t: torch.Tensor) -> tuple[int, int]:
    return t.data_ptr(), t.numel() * t.element_size()


def _dense(t: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy without lazy conjugation or negation."""
    return t.detach().resolve_conj().resolve_neg().contiguous()


def _in_place(t: torch.Tensor):
    """Returns (dense tensor to work on, function that copies its values back into `t`, or None)."""
    dense = _dense(t)
    if dense.data_ptr() == t.data_ptr():
        return dense, None

    def back() -> None:
        with torch.no_grad():
            t.copy_(dense)

    return dense, back


def _rows(t: torch.Tensor) -> int:
    if t.dim() == 0:
        raise InvalidArgument("a tensor without dimensions has no rows", hint="t.reshape(1)")
    return t.shape[0]


def _row_bytes(t: torch.Tensor) -> int:
    return t.shape[1:].numel() * t.element_size()


def _chunks(rows: int, world_size: int) -> list[int]:
    """Rows per rank, as ``torch.chunk`` divides them: equal pieces, the last ones smaller or empty."""
    piece = -(-rows // world_size)
    return [max(0, min(rows, (r + 1) * piece) - min(rows, r * piece)) for r in range(world_size)]


def _sizes(sizes: Sequence[int] | None, default: list[int], world_size: int, name: str) -> list[int]:
    out = default if sizes is None else [int(s) for s in sizes]
    if len(out) != world_size or any(s < 0 for s in out):
        raise InvalidArgument(f"{name}={out} for {world_size} ranks", hint="one number of rows per rank, none negative")
    return out


def _output(output: torch.Tensor | None, like: torch.Tensor, rows: int) -> torch.Tensor:
    shape = (rows, *like.shape[1:])
    if output is None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    _check(like, output)
    if tuple(output.shape) != shape or output.dtype != like.dtype:
        raise InvalidArgument(f"output is {_dtype(output)}{list(output.shape)}, the result {_dtype(like)}{list(shape)}")
    return output


def all_gather(
    tensor: torch.Tensor,
    output: torch.Tensor | None = None,
    *,
    sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Concatenates every rank's tensor on dim 0, in the order of ranks.

    ``tensor``: ``[rows, ...]``, of one dtype, and of one shape except for the rows. ``sizes``: the rows of each rank where they differ, the
    same list on every rank. ``output``: the destination, ``[sum of rows, ...]``; a new tensor by default. Raises ``InvalidArgument`` if
    shapes and sizes do not fit.
    """
    _check(tensor)
    g = _group(group, tensor.device)
    sizes = _sizes(sizes, [_rows(tensor)] * g.world_size, g.world_size, "sizes")
    if sizes[g.rank] != _rows(tensor):
        raise InvalidArgument(f"rank {g.rank} passes {_rows(tensor)} rows, but sizes={sizes} states {sizes[g.rank]}")
    output = _output(output, tensor, sum(sizes))
    source, (target, back) = _dense(tensor), _in_place(output)
    counts = [s * _row_bytes(tensor) for s in sizes]
    return g._run(
        lambda call: g._native.all_gather(_memory(source), _memory(target), counts, _dtype(tensor), call),
        (source, target),
        output,
        (label, step, timeout),
        async_op,
        back,
    )


def reduce_scatter(
    tensor: torch.Tensor,
    op: Op = "sum",
    output: torch.Tensor | None = None,
    *,
    sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Reduces the tensors of all ranks; each rank gets its rows of the result.

    ``tensor``: ``[rows, ...]``, the same shape and dtype on every rank. ``op``: "sum", "avg", "min", "max", "product" or torch's
    ``ReduceOp``. ``sizes``: the rows of each rank's result, by default as ``torch.chunk`` divides them. ``output``: ``[own rows, ...]``, a
    new tensor by default. Raises ``Unimplemented`` for dtypes that are not reduced.
    """
    _check(tensor)
    g = _group(group, tensor.device)
    sizes = _sizes(sizes, _chunks(_rows(tensor), g.world_size), g.world_size, "sizes")
    if sum(sizes) != _rows(tensor):
        raise InvalidArgument(f"sizes={sizes} are {sum(sizes)} rows, the tensor has {_rows(tensor)}")
    output = _output(output, tensor, sizes[g.rank])
    source, (target, back) = _dense(tensor), _in_place(output)
    counts = [s * _row_bytes(tensor) for s in sizes]
    return g._run(
        lambda call: g._native.reduce_scatter(_memory(source), _memory(target), counts, _dtype(tensor), _op(op), call),
        (source, target),
        output,
        (label, step, timeout),
        async_op,
        back,
    )


def all_reduce(
    tensor: torch.Tensor,
    op: Op = "sum",
    *,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Reduces a tensor over all ranks in place, with the same bits on every rank. Returns it.

    ``tensor``: any shape, the same on every rank. ``op``: as for :func:`reduce_scatter`. Complex tensors are summed and averaged.
    """
    _check(tensor)
    g = _group(group, tensor.device)
    dense, back = _in_place(tensor)
    of = torch.view_as_real(dense) if dense.is_complex() and _op(op) in ("sum", "avg") else dense
    return g._run(
        lambda call: g._native.all_reduce(_memory(of), _memory(of), _dtype(of), _op(op), call),
        (dense,),
        tensor,
        (label, step, timeout),
        async_op,
        back,
    )


def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    *,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Copies rank ``src``'s tensor to all ranks, in place. Returns it. Any shape and dtype, the same on every rank."""
    _check(tensor)
    g = _group(group, tensor.device)
    dense, back = _in_place(tensor)
    return g._run(
        lambda call: g._native.broadcast(_memory(dense), src, _dtype(tensor), call),
        (dense,),
        tensor,
        (label, step, timeout),
        async_op,
        back,
    )


def all_to_all(
    tensor: torch.Tensor,
    output: torch.Tensor | None = None,
    *,
    send_sizes: Sequence[int] | None = None,
    receive_sizes: Sequence[int] | None = None,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Sends rows of every rank to every rank: the q-th piece of ``tensor`` to rank q. The result has the received pieces in rank order.

    ``tensor``: ``[rows, ...]``. ``send_sizes``: rows for each rank; by default the rows are divided equally. ``receive_sizes``: rows from
    each rank, by default ``send_sizes``. Both ranks of a transfer must give the same size. ``output``: ``[sum of receive_sizes, ...]``, a
    new tensor by default. Raises ``InvalidArgument`` if sizes do not fit.
    """
    _check(tensor)
    g = _group(group, tensor.device)
    rows = _rows(tensor)
    if send_sizes is None and rows % g.world_size != 0:
        raise InvalidArgument(f"{rows} rows cannot be divided equally among {g.world_size} ranks", hint="pass send_sizes and receive_sizes")
    sends = _sizes(send_sizes, [rows // g.world_size] * g.world_size, g.world_size, "send_sizes")
    receives = _sizes(receive_sizes, sends, g.world_size, "receive_sizes")
    if sum(sends) != rows:
        raise InvalidArgument(f"send_sizes={sends} are {sum(sends)} rows, the tensor has {rows}")
    output = _output(output, tensor, sum(receives))
    source, (target, back) = _dense(tensor), _in_place(output)
    row = _row_bytes(tensor)
    return g._run(
        lambda call: g._native.all_to_all(
            _memory(source), _memory(target), [s * row for s in sends], [r * row for r in receives], _dtype(tensor), call
        ),
        (source, target),
        output,
        (label, step, timeout),
        async_op,
        back,
    )


def barrier(*, group: AnyGroup = None, async_op: bool = False, label: str = "", step: int = 0, timeout: float | None = None) -> Work | None:
    """Waits until every rank has called it."""
    g = _group(group)
    return g._run(g._native.barrier, (), None, (label, step, timeout), async_op)


def send(
    tensor: torch.Tensor,
    dst: int,
    *,
    tag: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> Work | None:
    """Sends a tensor to rank ``dst``, which calls :func:`recv` with the same size, dtype and tag. Messages between two ranks keep their
    order. Returns when the tensor may be used again, perhaps before its arrival."""
    _check(tensor)
    g = _group(group, tensor.device)
    dense = _dense(tensor)
    return g._run(
        lambda call: g._native.send(_memory(dense), dst, _dtype(tensor), tag, call), (dense,), None, (label, step, timeout), async_op
    )


def recv(
    tensor: torch.Tensor,
    src: int,
    *,
    tag: int = 0,
    group: AnyGroup = None,
    async_op: bool = False,
    label: str = "",
    step: int = 0,
    timeout: float | None = None,
) -> torch.Tensor | Work:
    """Receives the next message of rank ``src`` into ``tensor``, which is returned. Another size, dtype or tag raises ``InvalidArgument``
    on both ranks; between hosts, over gloo, sizes and dtypes are not compared."""
    _check(tensor)
    g = _group(group, tensor.device)
    dense, back = _in_place(tensor)
    return g._run(
        lambda call: g._native.receive(_memory(dense), src, _dtype(tensor), tag, call),
        (dense,),
        tensor,
        (label, step, timeout),
        async_op,
        back,
    )


class Window:
    """Memory of every rank, which all ranks may :func:`read`."""

    def __init__(self, group: Group, native, tensor: torch.Tensor):
        self.group, self._native, self.tensor = group, native, tensor


def window(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    group: AnyGroup = None,
    label: str = "window",
    step: int = 0,
    timeout: float | None = None,
) -> Window:
    """Allocates memory that other ranks may read without this rank's participation. Collective; shapes may differ between ranks.

    ``window.tensor`` is this rank's zeroed part, of this shape and dtype. It lives as long as the tensor or the window is referenced.
    """
    g = _group(group)
    numel = torch.Size(shape).numel()
    native = g._native.window(numel * dtype.itemsize, (label, step, timeout or 0.0, False))
    own = native.own.view(dtype) if numel else torch.empty(0, dtype=dtype)
    return Window(g, native, own.view(*shape))


def read(window: Window, src: int, output: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
    """Copies from rank ``src``'s part of a window into ``output``, which is returned. Rank ``src`` does not participate.

    ``offset``: the begin, in elements of ``output``'s dtype. A concurrent write by rank ``src`` may be read partially; synchronise with a
    :func:`barrier`. Raises ``InvalidArgument`` for a range outside the window.
    """
    _check(window.tensor, output)
    if offset < 0:
        raise InvalidArgument(f"offset={offset} of a window is negative")
    dense, back = _in_place(output)
    window.group._native.read(window._native, src, offset * output.element_size(), _memory(dense))
    torch.autograd.graph.increment_version(output)  # written without autograd's notice
    if back is not None:
        back()
    return output
