"""A group of ranks with a Communicator among them: one per set of ranks and process, placed at its first use."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shoal import _native
from shoal._ranks import TIMEOUT, WARN_AFTER, attach, gang_name, process_group_communicator, require_process_group
from shoal._runtime import state
from shoal.exceptions import InvalidArgument

_groups: dict[tuple[int, ...], Group] = {}
_all: weakref.WeakSet[Group] = weakref.WeakSet()  # those, and the generations after them


class Work:
    """An operation under way (``async_op=True``)."""

    def __init__(self, native: _native.Work, tensors: tuple[torch.Tensor, ...], result: torch.Tensor | None, finish: Callable | None):
        self._native, self._tensors, self._result, self._finish = native, tensors, result, finish

    def is_completed(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        return self._native.done()

    def wait(self) -> torch.Tensor | None:
        """Waits until it is done and returns what the function returns without ``async_op``; raises how it failed."""
        self._native.wait()
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        elif self._tensors and self._result is not None:
            torch.autograd.graph.increment_version(self._result)  # written behind autograd's back
        self._tensors = ()
        return self._result


class Group:
    """The ranks that a :mod:`shoal.collective` function is called for."""

    def __init__(self, native: _native.Communicator):
        self._native = native
        _all.add(self)
        self._pending: list[Work] = []  # they keep what the communicator still reads and writes, whoever drops them

    @property
    def rank(self) -> int:
        return self._native.rank

    @property
    def world_size(self) -> int:
        return self._native.world_size

    @property
    def generation(self) -> int:
        """1, and one more with every :meth:`reform`."""
        return self._native.generation

    @property
    def transport(self) -> str:
        """The carrier of its messages: ``"shm"``, or ``"gloo"`` where the ranks do not share memory."""
        return self._native.transport

    def abort(self, cause: str) -> None:
        """Ends every operation that is pending and every later one, on every rank: they raise ``Cancelled`` with this cause, unless the
        group has failed before."""
        self._native.abort(cause)

    @property
    def error(self) -> Exception | None:
        """Why the group can do no more, or None."""
        return self._native.failed()

    @property
    def lost(self) -> list[int]:
        """The ranks that are gone, as far as is known."""
        return self._native.lost()

    def reform(self) -> Group:
        """The next generation: a group of the ranks that are not lost, numbered again in their order. Every one of them calls it; this
        group has failed then. Raises ``Unavailable`` on a rank without which the others have gone on."""
        return Group(self._native.reform())

    def leave(self) -> None:
        """This rank makes no more calls: whoever needs it still is told so."""
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
        """Starts an operation; `finish` runs when it has been waited for."""
        label, step, timeout = call
        self._pending = [w for w in self._pending if not w.is_completed()]
        work = Work(start((label, step, timeout or 0.0, async_op)), tensors, result, finish)
        if async_op:
            self._pending.append(work)
            return work
        try:
            return work.wait()
        except BaseException:
            self._pending.append(work)  # interrupted: it goes on with the next call
            raise


def _ranks_of(of: DeviceMesh | dist.ProcessGroup | None) -> tuple[int, ...]:
    if of is None:
        require_process_group()
        return tuple(range(dist.get_world_size()))
    if isinstance(of, DeviceMesh):
        if of.ndim != 1:
            raise InvalidArgument(f"a mesh of {of.ndim} dimensions", hint='pass one of them: mesh["name"]')
        of = of.get_group()
    if not isinstance(of, dist.ProcessGroup):
        raise InvalidArgument(f"a group cannot be a {type(of).__name__}", hint="pass a DeviceMesh, a ProcessGroup or a Group")
    return tuple(dist.get_process_group_ranks(of))


def group(of: DeviceMesh | dist.ProcessGroup | Group | None = None) -> Group:
    """The group of these ranks (see the package for what ``of`` may be). Every rank of it asks for it, as it calls any other collective.

    Raises ``InvalidArgument`` on a rank that is not in it.
    """
    if isinstance(of, Group):
        return of
    ranks = _ranks_of(of)
    found = _groups.get(ranks)
    if found is None:
        if dist.get_rank() not in ranks:
            raise InvalidArgument(f"rank {dist.get_rank()} is not in the group of ranks {list(ranks)}")
        rank = ranks.index(dist.get_rank())
        shared, gang = attach(ranks).shared, gang_name("group", ranks, rank)
        if shared:
            native = _native.Communicator.place(
                state.session,
                gang=gang,
                rank=rank,
                world_size=len(ranks),
                timeout=TIMEOUT,
                warn_after=WARN_AFTER,
                spins=len(ranks) <= len(os.sched_getaffinity(0)),
            )
        else:
            native = process_group_communicator(gang, ranks)
        found = _groups[ranks] = Group(native)
        state.ending.append(leave_all)
    return found


def leave_all() -> None:
    """This process makes no more calls in any group."""
    _groups.clear()
    for g in list(_all):
        g._native.close()
