"""The collectives of a process group, on CPU tensors, over a native Communicator."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

from shoal import _native
from shoal.exceptions import InvalidArgument, ShoalError
from shoal.torch._errors import as_torch
from shoal.torch._tensors import (
    DTYPES,
    NO_MEMORY,
    dense,
    dtype_of,
    is_simple,
    joined,
    joined_to_write,
    memory,
    op_of,
    plain,
    reduced_dtype,
    sizes_of,
    written,
)
from shoal.torch._work import ENDED, OF_CALLBACKS, Completer, Several, Work

_NO_TIME = timedelta(0)

Tensors = Sequence[torch.Tensor]
Call = tuple[str, int, float, bool]  # label, step, timeout in seconds or 0 for the communicator's, background


def one(tensors: torch.Tensor | Tensors) -> torch.Tensor:
    """Returns the tensor of a call that takes exactly one, by itself or in a list."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidArgument(f"{len(tensors)} tensors for a collective of one", hint="make a call for each tensor, or a coalesced one")
    return tensors[0]


class Collectives(dist.ProcessGroup):
    """Collectives under the names by which ``torch.distributed`` calls them.

    Each takes torch's options. With ``asyncOp`` it returns a Work at once, else it has ended. Tensors are strided, on the CPU, of any
    dtype but quantised ones; those that are not contiguous are copied. Tensors on other devices go to the group's backend for that device.
    """

    _timeout: timedelta  # the group's time limit

    def __init__(self, native: _native.Communicator, rank: int, size: int, name: str):
        super().__init__(rank, size)
        self._native, self._rank, self._size = native, rank, size
        self._now: Call = ("", 0, 0.0, False)
        self._later: Call = ("", 0, 0.0, True)
        self._completer = Completer(name)
        self._turns = self._completer.turns
        self._pending: deque[Work] = deque()  # keep alive the tensors of operations under way
        self._keeping = threading.Lock()  # one thread at a time drops the Works that have ended
        self._lists: list[list[Work] | None] = [None, None]  # the program's and the callbacks': see _coalesced

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of later operations."""
        self._now, self._later = (("", 0, timeout.total_seconds(), background) for background in (False, True))

    def _begin(self, opts: object) -> tuple[_native.Communicator, Call]:
        """Returns the communicator for a collective with these options, which begins now, and its native description."""
        native = self.of_callbacks() if self._in_callback() else self._native
        limit = opts.timeout
        if limit > _NO_TIME:
            return native, ("", 0, limit.total_seconds(), opts.asyncOp)
        return native, self._later if opts.asyncOp else self._now

    def _in_callback(self) -> bool:
        return self._turns.runner is not None and self._turns.inside()

    @property
    def _coalesced(self) -> list[Work] | None:
        """The operations since ``_start_coalescing``, or None outside. A callback, which may run meanwhile, has a list of its own."""
        return self._lists[self._in_callback()]

    @_coalesced.setter
    def _coalesced(self, works: list[Work] | None) -> None:
        self._lists[self._in_callback()] = works

    def of_callbacks(self) -> _native.Communicator:
        """Returns the communicator of the collectives that callbacks of futures start. The program may start others meanwhile, at another
        place of the order on each rank."""
        raise NotImplementedError

    def elsewhere(self, device: torch.device) -> dist.ProcessGroup:
        """Returns the process group of this group's backend for another device than the CPU."""
        raise NotImplementedError

    def _ended(self, native: _native.Work, call: Call, tensors: object, result: list, back: Callable[[], None] | None = None) -> dist.Work:
        """Waits for an operation unless it is a background one; returns its Work."""
        if call[3]:
            return self.started([native], tensors, result, back)
        try:
            native.wait()
        except ShoalError as error:
            raise as_torch(error) from None
        except BaseException:
            self.started([native], tensors, result, back)  # interrupted: the operation uses the tensors further
            raise
        if back is not None:
            back()
        return ENDED

    def started(self, natives: list, tensors: object, result: list, back: Callable[[], None] | None = None, **message) -> Work:
        """Returns the Work of operations under way, which the group keeps until they end. ``message``: see Work."""
        in_callback = self._in_callback()
        if in_callback:
            message.setdefault("lane", OF_CALLBACKS)
        work = Work(natives, tensors, result, back, self._completer, **message)
        pending = self._pending
        with self._keeping:
            pending.append(work)
            while pending and pending[0].ended():
                pending.popleft()
        coalesced = self._lists[in_callback]
        if coalesced is not None:
            coalesced.append(work)
        return work

    def _each(self, works: list[dist.Work], result: list) -> dist.Work:
        """Returns the Work of several operations that were started in this order."""
        under_way = [w for w in works if w is not ENDED]
        return Several(under_way, result, self._completer) if under_way else ENDED

    # ---- reductions ----

    def allreduce(self, tensors: torch.Tensor | Tensors, opts: object = None) -> dist.Work:
        """Reduces one tensor over all ranks, in place."""
        opts = self._reducing(opts, dist.AllreduceOptions)
        t = one(tensors)
        op, (native, call) = op_of(opts.reduceOp), self._begin(opts)
        if is_simple(t):
            at = (t.data_ptr(), t.nbytes)
            return self._ended(native.all_reduce(at, at, reduced_dtype(t, op), op, call), call, t, [t])
        if not t.is_cpu:
            return self.elsewhere(t.device).allreduce([t], opts)
        if t.is_sparse:
            return self._allreduce_sparse(t, op, native, call)
        buffer, back = written(t)
        at = memory(buffer)
        return self._ended(native.all_reduce(at, at, reduced_dtype(buffer, op), op, call), call, buffer, [t], back)

    def _reducing(self, opts: object, kind: type) -> object:
        """Returns the options; torch's older signatures have only the reduction in this place."""
        if type(opts) is kind or hasattr(opts, "reduceOp"):
            return opts
        options = kind()
        if opts is not None:
            options.reduceOp = opts
        return options

    def _allreduce_sparse(self, t: torch.Tensor, op: str, native: _native.Communicator, call: Call) -> dist.Work:
        """Sums sparse tensors: gathers all ranks' indices and values. Ends before it returns."""
        if op != "sum":
            raise InvalidArgument(f"sparse tensors have no reduction by {op}", hint="sum, or t.to_dense()")
        own = t.coalesce()
        indices, values = own.indices().T.contiguous(), own.values().contiguous()
        now = (*call[:3], False)
        counts = torch.empty(self._size, dtype=torch.int64)
        mine = torch.tensor([own._nnz()])
        self._ended(native.all_gather(memory(mine), memory(counts), [8] * self._size, "int64", now), now, (mine, counts), [])
        rows = counts.tolist()

        def gathered(part: torch.Tensor) -> torch.Tensor:
            whole = part.new_empty((sum(rows), *part.shape[1:]))
            row = part.shape[1:].numel() * part.element_size()
            started = native.all_gather(memory(part), memory(whole), [n * row for n in rows], dtype_of(part), now)
            self._ended(started, now, (part, whole), [])
            return whole

        total = torch.sparse_coo_tensor(gathered(indices).T, gathered(values), t.shape).coalesce()
        with torch.no_grad():
            t.copy_(total)
        return self.started([], None, [t]) if call[3] else ENDED

    def allreduce_coalesced(self, tensors: Tensors, opts: object = None) -> dist.Work:
        """Reduces each tensor over all ranks, in place."""
        opts = self._reducing(opts, dist.AllreduceCoalescedOptions)
        if not tensors[0].is_cpu:
            return self.elsewhere(tensors[0].device).allreduce_coalesced(list(tensors), opts)
        return self._each([self.allreduce(t, opts) for t in tensors], list(tensors))

    def reduce(self, tensors: torch.Tensor | Tensors, root: object = 0, op: object = None) -> dist.Work:
        """Reduces one tensor over all ranks, into that of the root. ``root``: torch's ReduceOptions, or the root's rank."""
        opts = root
        if not hasattr(opts, "reduceOp"):
            opts = dist.ReduceOptions()
            opts.rootRank, opts.reduceOp = root, dist.ReduceOp.SUM if op is None else op
        t = one(tensors)
        if not t.is_cpu:
            return self.elsewhere(t.device).reduce([t], opts)
        op, (native, call), at_root = op_of(opts.reduceOp), self._begin(opts), opts.rootRank
        source = dense(t)
        counts = [source.nbytes if r == at_root else 0 for r in range(self._size)]
        out, back = None, None
        if self._rank == at_root:
            target, out = plain(t), torch.empty_like(source)
            back = lambda: target.detach().copy_(out)  # noqa: E731
        at = NO_MEMORY if out is None else memory(out)
        started = native.reduce_scatter(memory(source), at, counts, reduced_dtype(source, op), op, call)
        return self._ended(started, call, (source, out), [t], back)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> dist.Work:
        """Reduces the inputs of all ranks; rank r gets the r-th of as many equal parts as there are ranks."""
        opts = self._reducing(opts, dist.ReduceScatterOptions)
        if not input.is_cpu:
            return self.elsewhere(input.device)._reduce_scatter_base(output, input, opts)
        op, (native, call) = op_of(opts.reduceOp), self._begin(opts)
        source, (target, back) = dense(input), written(output)
        _check_parts("output", target, "input", source, self._size)
        counts = [target.nbytes] * self._size
        started = native.reduce_scatter(memory(source), memory(target), counts, reduced_dtype(source, op), op, call)
        return self._ended(started, call, (source, target), [output], back)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(self, outputs: torch.Tensor | Tensors, inputs: Sequence[Tensors], opts: object = None) -> dist.Work:
        """Reduces the r-th tensor of all ranks' lists for rank r. The tensors of a list may differ in size."""
        opts = self._reducing(opts, dist.ReduceScatterOptions)
        output = one(outputs)
        if not output.is_cpu:
            return self.elsewhere(output.device).reduce_scatter([output], [list(*inputs)], opts)
        op, (native, call) = op_of(opts.reduceOp), self._begin(opts)
        parts = inputs if isinstance(inputs[0], torch.Tensor) else inputs[0]
        _check_number(parts, self._size)
        (whole, at), (target, back) = joined(parts), written(output)
        started = native.reduce_scatter(at, memory(target), sizes_of(parts), reduced_dtype(target, op), op, call)
        return self._ended(started, call, (whole, target), [output], back)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> dist.Work:
        """Makes a ``reduce_scatter_single`` of each pair of tensors."""
        opts = self._reducing(opts, dist.ReduceScatterOptions)
        works = [self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._each(works, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # until torch 2.12

    # ---- copies ----

    def broadcast(self, tensors: torch.Tensor | Tensors, opts: object = None) -> dist.Work:
        """Copies the root's tensor to all ranks, in place. ``opts``: torch's BroadcastOptions, or the root's rank."""
        if not hasattr(opts, "rootRank"):
            opts, root = dist.BroadcastOptions(), opts
            opts.rootRank = root or 0
        t = one(tensors)
        if not t.is_cpu:
            return self.elsewhere(t.device).broadcast([t], opts)
        native, call = self._begin(opts)
        buffer, back = written(t)
        started = native.broadcast(memory(buffer), opts.rootRank, DTYPES.get(t.dtype) or dtype_of(t), call)
        return self._ended(started, call, buffer, [t], back)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: object = None) -> dist.Work:
        """Puts the inputs of all ranks, of one size, one after the other into ``output``. An input may be its part of the output."""
        if not input.is_cpu:
            return self.elsewhere(input.device)._allgather_base(output, input, opts or AllgatherOptions())
        native, call = self._begin(opts or AllgatherOptions())
        source, (target, back) = dense(input), written(output)
        _check_parts("input", source, "output", target, self._size)
        counts = [source.nbytes] * self._size
        started = native.all_gather(memory(source), memory(target), counts, DTYPES.get(source.dtype) or dtype_of(source), call)
        return self._ended(started, call, (source, target), [output], back)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> dist.Work:
        """Makes an ``all_gather_single`` of each pair of tensors."""
        opts = opts or AllgatherOptions()
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return self._each(works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # until torch 2.12

    def allgather(self, outputs: Sequence, inputs: torch.Tensor | Tensors, opts: object = None) -> dist.Work:
        """Copies every rank's input to the tensor of its number in ``outputs``, on all ranks. Sizes may differ between ranks."""
        opts, t = opts or AllgatherOptions(), one(inputs)
        parts = outputs if isinstance(outputs[0], torch.Tensor) else outputs[0]
        if not t.is_cpu:
            return self.elsewhere(t.device).allgather([list(parts)], [t], opts)
        _check_number(parts, self._size)
        (native, call), source = self._begin(opts), dense(t)
        whole, at, back = joined_to_write(parts)
        started = native.all_gather(memory(source), at, sizes_of(parts), dtype_of(source), call)
        return self._ended(started, call, (source, whole), list(parts), back)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None) -> dist.Work:
        """Gathers several inputs: ``outputs[r][i]`` becomes rank r's i-th input."""
        opts = opts or AllgatherOptions()
        works = [self.allgather([[of_rank[i] for of_rank in outputs]], [t], opts) for i, t in enumerate(inputs)]
        return self._each(works, [t for of_rank in outputs for t in of_rank])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: object = None) -> dist.Work:
        """Copies every rank's input to the tensor of its number in the root's ``outputs[0]``, all of one size."""
        opts, t = opts or dist.GatherOptions(), one(inputs)
        if not t.is_cpu:
            return self.elsewhere(t.device).gather([list(o) for o in outputs], [t], opts)
        (native, call), source, root = self._begin(opts), dense(t), opts.rootRank
        parts = list(outputs[0]) if self._rank == root else []
        if self._rank == root:
            _check_number(parts, self._size)
        whole, at, back = joined_to_write(parts)
        sends = [source.nbytes if r == root else 0 for r in range(self._size)]
        receives = sizes_of(parts) if parts else [0] * self._size
        started = native.all_to_all(memory(source), at, sends, receives, dtype_of(source), call)
        return self._ended(started, call, (source, whole), parts, back)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: object = None) -> dist.Work:
        """Copies the r-th tensor of the root's ``inputs[0]`` to rank r, all of one size."""
        opts, t = opts or dist.ScatterOptions(), one(outputs)
        if not t.is_cpu:
            return self.elsewhere(t.device).scatter([t], [list(i) for i in inputs], opts)
        (native, call), (target, back), root = self._begin(opts), written(t), opts.rootRank
        parts = list(inputs[0]) if self._rank == root else []
        if self._rank == root:
            _check_number(parts, self._size)
        whole, at = joined(parts)
        receives = [target.nbytes if r == root else 0 for r in range(self._size)]
        sends = sizes_of(parts) if parts else [0] * self._size
        started = native.all_to_all(at, memory(target), sends, receives, dtype_of(target), call)
        return self._ended(started, call, (whole, target), [t], back)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: object = None
    ) -> dist.Work:
        """Sends rows of ``input`` to every rank. The sizes are rows for each rank; empty ones divide the rows equally."""
        opts = opts or dist.AllToAllOptions()
        if not input.is_cpu:
            return self.elsewhere(input.device).alltoall_base(output, input, list(output_sizes), list(input_sizes), opts)
        (native, call), source, (target, back) = self._begin(opts), dense(input), written(output)
        sends = _row_counts(source, input_sizes, self._size, "input")
        receives = _row_counts(target, output_sizes, self._size, "output")
        started = native.all_to_all(memory(source), memory(target), sends, receives, dtype_of(source), call)
        return self._ended(started, call, (source, target), [output], back)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: object = None) -> dist.Work:
        """Sends the r-th input to rank r. Sizes may differ; those of a sender and its receiver are equal."""
        opts = opts or dist.AllToAllOptions()
        if not inputs[0].is_cpu:
            return self.elsewhere(inputs[0].device).alltoall(list(outputs), list(inputs), opts)
        _check_number(inputs, self._size)
        _check_number(outputs, self._size)
        native, call = self._begin(opts)
        (source, at), (target, to, back) = joined(inputs), joined_to_write(outputs)
        started = native.all_to_all(at, to, sizes_of(inputs), sizes_of(outputs), dtype_of(plain(inputs[0])), call)
        return self._ended(started, call, (source, target), list(outputs), back)

    def barrier(self, opts: object = None) -> dist.Work:
        """Waits until every rank has called it."""
        native, call = self._begin(opts or dist.BarrierOptions())
        return self._ended(native.barrier(call), call, None, [])


def _check_number(tensors: Tensors, size: int) -> None:
    if len(tensors) != size:
        raise InvalidArgument(f"{len(tensors)} tensors for {size} ranks", hint="pass one tensor for each rank")


def _check_parts(part_name: str, part: torch.Tensor, whole_name: str, whole: torch.Tensor, size: int) -> None:
    if part.dtype != whole.dtype:
        raise InvalidArgument(f"the {part_name} has {part.dtype}, the {whole_name} {whole.dtype}", hint="pass tensors of one dtype")
    if part.numel() * size != whole.numel():
        raise InvalidArgument(
            f"the {whole_name} has {whole.numel()} elements, the {part_name} {part.numel()}, in a group of {size} ranks",
            hint=f"the {whole_name} has as many elements as {size} {part_name}s",
        )


def _row_counts(t: torch.Tensor, sizes: Sequence[int], group_size: int, name: str) -> list[int]:
    """Returns the bytes of each rank's rows."""
    rows = t.shape[0] if t.dim() else 1
    if not sizes:
        if rows % group_size:
            raise InvalidArgument(f"the {name}'s {rows} rows cannot be divided equally among {group_size} ranks", hint="pass split sizes")
        return [t.nbytes // group_size] * group_size
    if len(sizes) != group_size or sum(sizes) != rows:
        raise InvalidArgument(
            f"split sizes {list(sizes)} for {rows} rows of the {name} and {group_size} ranks", hint="they add up to the rows"
        )
    row = t.nbytes // rows if rows else 0
    return [n * row for n in sizes]
