"""The generations of a process group: its communicator, which ``reconfigure`` replaces by one of other members, and its windows."""

from __future__ import annotations

import itertools
from datetime import timedelta

import torch
import torch.distributed as dist

from shoal import _native
from shoal._distributed.communicator import form_communicator, make_communicator
from shoal._distributed.ranks import Host, attach, gang_name
from shoal.exceptions import InvalidArgument, ShoalError, Unimplemented
from shoal.torch._errors import as_torch
from shoal.torch._membership import Unformed, make_handle, meet, meeting_store, members_of
from shoal.torch._messages import Messages
from shoal.torch._window import Window
from shoal.torch._work import DONE

_OF_CALLBACKS = (-1, 0)  # the channel of collectives, which has no peer


class Generations(Messages):
    """A group of ranks over a communicator, with a store that its members share."""

    supports_reconfigure: bool  # True for a group with one backend; the subclass knows its backends

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, formed: bool):
        self._timeout = timeout
        self._count_anew()
        native = self._form(store, rank, size, name) if formed else Unformed()
        if not formed:
            self._host, self._base = attach((rank,), rank, store), ""  # processes of a host get one node, so that they can share memory
        super().__init__(native, rank, size, name or "group", store, self._open_pair)
        self._handle, self._uuids = make_handle(store), set()

    def _count_anew(self) -> None:
        """Begins the counts that make names. Members of a generation have the same, whatever generations they were in before."""
        self._windows, self._splits, self._barriers = itertools.count(), itertools.count(), 0

    def _form(self, store: dist.Store, rank: int, size: int, name: str) -> _native.Communicator:
        """Returns the communicator of these ranks, over a store in which they have these numbers."""
        ranks, self._host = tuple(range(size)), attach(tuple(range(size)), rank, store)
        self._base = gang_name(f"process_group/{name}", ranks, rank, store)  # groups of other stores count apart
        try:
            return form_communicator(self._base, ranks, rank, self._host.shared, store=store, timeout=self._timeout.total_seconds())
        except ShoalError as error:
            raise as_torch(error) from None

    def of_callbacks(self) -> _native.Communicator:
        native = self._channels.get(_OF_CALLBACKS)
        if native is None:  # callbacks run one at a time, so no other thread opens it
            name, ranks, limit = f"{self._base}/callbacks", tuple(range(self._size)), self._timeout.total_seconds()
            store = self._store.clone()  # the program may wait in the other one
            native = form_communicator(name, ranks, self._rank, self._host.shared, store=store, timeout=limit)
            self._channels[_OF_CALLBACKS] = native
        return native

    def _communicator(self, name: str, ranks: tuple[int, ...], rank: int, store: dist.Store) -> _native.Communicator:
        return make_communicator(name, ranks, rank, self._host.shared, store=store, timeout=self._timeout.total_seconds())

    def _open_pair(self, peer: int, tag: int) -> _native.Communicator:
        pair = (min(self._rank, peer), max(self._rank, peer))
        return self._communicator(f"{self._base}/{pair[0]}-{pair[1]}/{tag}", pair, pair.index(self._rank), self._store)

    def open_way(self, source: int, to: int, name: str) -> _native.Communicator:
        """Returns a communicator for messages of one rank to another one. It does not wait for the other in shared memory."""
        pair = (source, to)
        return self._communicator(f"{self._base}/{source}-{to}/{name}", pair, pair.index(self._rank), self._store)

    @property
    def host(self) -> Host:
        """The ranks of this group that share memory with this one."""
        return self._host

    @property
    def transport(self) -> str:
        """The transport of CPU tensors: ``"shm"``, or another where the ranks share no memory."""
        return self._native.transport

    def get_reconfigure_handle(self) -> str:
        """Returns this process's name for ``reconfigure``: the same at all times, and for no other process."""
        self._check_one_backend()
        return self._handle.text()

    def reconfigure(self, opts: object) -> dist.Work:
        """Gives the group other members, as ``torch.distributed._reconfigure`` describes. Ends before it returns.

        ``opts``: torch's ReconfigureOptions. If a member does not come in time, this raises ``DeadlineExceeded``, and the group is as it
        was. Operations under way in the former group end with an error.
        """
        self._check_one_backend()
        try:
            self._reconfigure(opts.uuid, opts.handles, opts.timeout or self._timeout)
        except ShoalError as error:
            raise as_torch(error) from None
        return DONE

    def _reconfigure(self, uuid: int, handles: set[str] | list[str], timeout: timedelta) -> None:
        if uuid in self._uuids:
            raise InvalidArgument(f"the uuid {uuid} was already used", hint="pass a fresh one, the same on all members")
        members = members_of(uuid, handles, self._handle)
        self._uuids.add(uuid)
        store = meeting_store(members, self._store, timeout)
        meet(members, store, timeout)
        self._leave()
        self._rank, self._size, self._store = members.rank, members.size, store
        self._count_anew()
        self._native = Unformed()  # until the new one is there: a member may die in between
        self._native = self._form(store, members.rank, members.size, members.name)

    def _check_one_backend(self) -> None:
        if not self.supports_reconfigure:
            raise as_torch(
                Unimplemented("process groups with multiple backends cannot be reconfigured", hint='init_process_group("shoal")')
            )

    @property
    def supports_window(self) -> bool:
        return self.transport == "shm"

    def next_window(self) -> int:
        """Returns the number of a new window, the same on all ranks."""
        return next(self._windows)

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Returns a window, with the tensor registered if there is one. Collective. See :class:`shoal.torch.Window`."""
        return Window(self, tensor)

    def _leave(self) -> None:
        """Leaves the communicators of this generation."""
        for native in (self._native, *self._channels.values()):
            native.leave()
        self._channels.clear()
        self._met.clear()
