"""A group of ranks with a Communicator: one per sequence of ranks and process, placed at its first use."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal._core.process import state
from shoal._distributed.communicator import form_communicator
from shoal._distributed.devices import Streams, open_group
from shoal._distributed.ranks import attach, gang_name, require_process_group
from shoal.exceptions import InvalidArgument, Unavailable, Unimplemented

_CPU = torch.device("cpu")
_groups: dict[tuple[tuple[int, ...], torch.device], Group] = {}
_all: weakref.WeakSet[Group] = weakref.WeakSet()  # _groups and their later generations


class Work:
    """A running operation (``async_op=True``)."""

    def __init__(
        self,
        group: Group,
        native: _native.Work,
        tensors: tuple[torch.Tensor, ...],
        result: torch.Tensor | None,
        finish: Callable | None,
    ):
        self._group = group
        self._native, self._tensors, self._result, self._finish = native, tensors, result, finish

    def is_completed(self) -> bool:
        """Returns True if ``wait`` would return or raise at once."""
        return self._native.ended()

    def wait(self) -> torch.Tensor | None:
        """Waits for the end of the operation. Returns the function's result without ``async_op``; raises the operation's error.

        On a device only later kernels of the current stream wait, not the program.
        """
        if self._tensors:
            self._group._wait(self._native)
        else:  # a barrier
            self._native.wait()
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        elif self._tensors and self._result is not None:
            torch.autograd.graph.increment_version(self._result)  # written without autograd's notice
        self._tensors = ()
        return self._result


class Group:
    """A group of ranks for the functions of :mod:`shoal.collective`."""

    def __init__(self, native: _native.Communicator, device: torch.device = _CPU, streams: Streams | None = None):
        self._native, self._device, self._streams = native, device, streams
        _all.add(self)
        self._pending: list[Work] = []  # keep alive the tensors of running operations

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def world_size(self) -> int:
        return self._native.world_size

    @property
    def generation(self) -> int:
        """Begins at 1; every :meth:`reform` increments it."""
        return self._native.generation

    @property
    def transport(self) -> str:
        """The transport of messages: ``"shm"``, or between hosts ``"tcp"``, ``"tls"``, ``"ucx"`` or ``"gloo"``. Between devices it is
        ``"nccl"`` or ``"cuda_ipc"``."""
        return self._native.transport

    @property
    def device(self) -> torch.device:
        """The device of the tensors that this group takes."""
        return self._device

    def abort(self, cause: str) -> None:
        """Ends pending and later operations on every rank: they raise ``Cancelled`` with this cause, unless the group failed before."""
        self._native.abort(cause)

    @property
    def error(self) -> Exception | None:
        """The error that made the group unusable, or None."""
        return self._native.failed()

    @property
    def lost(self) -> list[int]:
        """The ranks known to be lost."""
        return self._native.lost()

    def reform(self) -> Group:
        """Returns the next generation: a group of the ranks that are not lost, renumbered in order. All of them must call it; this group
        fails then. Raises ``Unavailable`` on a rank that the new group excludes."""
        return Group(self._native.reform(), self._device, self._streams)

    def leave(self) -> None:
        """Declares that this rank makes no more calls. A rank that still needs this one gets an error."""
        self._native.leave()

    def _run(
        self,
        start: Callable[[tuple], _native.Work],
        tensors: tuple[torch.Tensor, ...],
        result: torch.Tensor | None,
        call: tuple[str, int, float | None],
        async_op: bool,
        finish: Callable | None = None,
    ):
        """Starts an operation. `finish` runs at the end of the first successful wait."""
        label, step, timeout = call
        self._pending = [w for w in self._pending if not w.is_completed()]
        if self._streams is not None:
            self._native.ready_on(self._streams.current())
        work = Work(self, start((label, step, timeout or 0.0, async_op)), tensors, result, finish)
        if async_op:
            self._pending.append(work)
            return work
        try:
            return work.wait()
        except BaseException:
            self._pending.append(work)  # interrupted: the operation continues during the next call
            raise

    def _wait(self, work: _native.Work) -> None:
        if self._streams is None:
            work.wait()
        else:
            self._native.order_after(work, self._streams.current())


def _ranks_of(members: DeviceMesh | dist.ProcessGroup | None) -> tuple[int, ...]:
    if members is None:
        require_process_group()
        return tuple(range(dist.get_world_size()))
    if isinstance(members, DeviceMesh):
        if members.ndim != 1:
            raise InvalidArgument(f"a group cannot be a mesh of {members.ndim} dimensions", hint='pass one of them: mesh["name"]')
        members = members.get_group()
    if not isinstance(members, dist.ProcessGroup):
        raise InvalidArgument(f"a group cannot be a {type(members).__name__}", hint="pass a DeviceMesh, a ProcessGroup or a Group")
    return tuple(dist.get_process_group_ranks(members))


def group(members: DeviceMesh | dist.ProcessGroup | Group | None = None, device: torch.device | str | None = None) -> Group:
    """Returns the group of these ranks. ``members``: as ``group`` in the package's docstring. ``device``: where the tensors are, by default
    the CPU. Collective over the group's ranks.

    Raises ``InvalidArgument`` on a rank outside the group, ``Unavailable`` if the ranks cannot connect their CUDA devices.
    """
    if isinstance(members, Group):
        if device is not None and torch.device(device) != members.device:
            raise InvalidArgument(
                f"this group takes tensors on {members.device}, not on {device}", hint=f"make another one: group(device={str(device)!r})"
            )
        return members
    device = _CPU if device is None else torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    ranks = _ranks_of(members)
    found = _groups.get((ranks, device))
    if found is None:
        if dist.get_rank() not in ranks:
            raise InvalidArgument(f"rank {dist.get_rank()} is not in the group of ranks {list(ranks)}")
        found = _groups[ranks, device] = _open(ranks, ranks.index(dist.get_rank()), device)
        if leave_all not in state.ending:
            state.ending.append(leave_all)
    return found


def _open(ranks: tuple[int, ...], rank: int, device: torch.device) -> Group:
    if device == _CPU:
        return Group(form_communicator(gang_name("group", ranks, rank), ranks, rank, attach(ranks).shared))
    if device.type != "cuda":
        raise Unimplemented(f"collectives of tensors on {device} are not in this release", hint="move them to the CPU")
    opened, choice = open_group(ranks, rank, device)
    if opened is None:
        raise Unavailable(f"shoal.collective cannot connect the ranks' devices: {choice.why}", hint="move the tensors to the CPU")
    return Group(opened.native, device, opened.streams)


def leave_all() -> None:
    """Leaves all groups: this process makes no more calls."""
    _groups.clear()
    for g in list(_all):
        g._native.leave()
