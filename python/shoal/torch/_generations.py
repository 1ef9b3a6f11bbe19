"""The generations of a process group: its communicator, which ``reconfigure`` replaces by one of other members."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from shoal import _native
from shoal._distributed.communicator import form_communicator, make_communicator
from shoal._distributed.ranks import Host, attach, gang_name
from shoal.exceptions import ActorDiedError, InvalidArgument, ShoalError, Unavailable, Unimplemented
from shoal.torch._errors import as_torch
from shoal.torch._membership import Unformed, make_handle, meet, meeting_store, members_of
from shoal.torch._messages import Messages
from shoal.torch._work import ENDED

_OF_CALLBACKS = (-1, 0)  # the channel of collectives, which has no peer
_LOSS_KNOWN_S = 5.0  # the store of a rank that dies may break before the rank's death is known


class Generations(Messages):
    """A group of ranks over a communicator, with a store that its members share."""

    supports_reconfigure: bool  # True for a group with one backend; the subclass knows its backends

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str, formed: bool):
        self._timeout = timeout
        self._changing = threading.Lock()  # held while the generation changes, because threads of callbacks read the generation
        self._count_anew()
        native = self._form(store, rank, size, name) if formed else Unformed()
        if not formed:
            self._host, self._base = attach((rank,), rank, store), ""  # processes of a host get one node, so that they can share memory
        super().__init__(native, rank, size, name or "group", store, self._open_pair)
        self._handle, self._uuids = make_handle(store), set()

    def _count_anew(self) -> None:
        """Begins the counts that make names. Members of a generation have the same, whatever generations they were in before."""
        self._windows, self._splits, self._barriers = itertools.count(), itertools.count(), 0
        self._generation: object | None = object()  # a new object for each generation; None for a group that was left
        self._unformed: ShoalError | None = None  # why there is no communicator of callbacks in this generation

    def _form(self, store: dist.Store, rank: int, size: int, name: str) -> _native.Communicator:
        """Returns the communicator of these ranks, over a store in which they have these numbers."""
        ranks, self._host = tuple(range(size)), attach(tuple(range(size)), rank, store)
        self._base = gang_name(f"process_group/{name}", ranks, rank, store)  # unique within this store; each store has its own count
        try:
            return form_communicator(self._base, ranks, rank, self._host.shared, store=store, timeout=self._timeout.total_seconds())
        except ShoalError as error:
            raise as_torch(error) from None

    def of_callbacks(self) -> _native.Communicator:
        with self._changing:
            formed, native, generation, unformed = self._channels.get(_OF_CALLBACKS), self._native, self._generation, self._unformed
            name, rank, size, host, store = f"{self._base}/callbacks", self._rank, self._size, self._host, self._store
        if formed is not None:
            return formed
        if generation is None or isinstance(native, Unformed):
            return native  # its operations raise the error
        if unformed is not None:  # another attempt would find the names of the first one in the store
            raise as_torch(unformed)

        def watch() -> None:
            self._check_generation(native, generation)
            if lost := native.lost():
                raise ActorDiedError(
                    f"rank {lost[0]} is gone: rank {rank} waits for it in the first collective of a callback",
                    reason="ActorDied",
                    hint=f"look at the output of rank {lost[0]}",
                )

        def form() -> _native.Communicator:
            watch()
            own = _cloned(store, watch)  # another client: the program may be waiting in this one
            limit = self._timeout.total_seconds()
            return form_communicator(name, tuple(range(size)), rank, host.shared, store=own, timeout=limit, watch=watch)

        try:  # callbacks run one at a time, so no other thread opens it
            formed = _formed(form, watch)
            with self._changing:
                if generation is self._generation:
                    self._channels[_OF_CALLBACKS] = formed
            try:
                self._check_generation(native, generation)  # an abort before it was among the channels did not end it
            except ShoalError:
                formed.leave()
                raise
        except BaseException as error:
            cause = error if isinstance(error, ShoalError) else Unavailable(f"callbacks have no communicator: {error!r}")
            with self._changing:
                if generation is self._generation:
                    self._channels.pop(_OF_CALLBACKS, None)
                    self._unformed = cause
            if isinstance(error, ShoalError):
                raise as_torch(error) from None
            raise
        return formed

    def _check_generation(self, native: _native.Communicator, generation: object) -> None:
        """Raises an error if the communicator of a generation has failed, or if the group has left that generation."""
        if generation is not self._generation:
            raise Unavailable("the process group was shut down, or has other members now", reason="Closed")
        if (failure := native.failed()) is not None:
            raise failure

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
        return ENDED

    def _reconfigure(self, uuid: int, handles: set[str] | list[str], timeout: timedelta) -> None:
        if uuid in self._uuids:
            raise InvalidArgument(f"the uuid {uuid} was already used", hint="pass a fresh one, the same on all members")
        members = members_of(uuid, handles, self._handle)
        self._uuids.add(uuid)
        store = meeting_store(members, self._store, timeout)
        meet(members, store, timeout)
        self._leave()
        with self._changing:
            self._rank, self._size, self._store = members.rank, members.size, store
            self._count_anew()
            self._native = Unformed()  # until the new one is there: a member may die in between
        self._native = self._form(store, members.rank, members.size, members.name)

    def _check_one_backend(self) -> None:
        if not self.supports_reconfigure:
            raise as_torch(
                Unimplemented("process groups with multiple backends cannot be reconfigured", hint='init_process_group("shoal")')
            )

    def _leave(self) -> None:
        """Leaves the communicators of this generation."""
        with self._changing:
            natives, self._generation = (self._native, *self._channels.values()), None
            self._channels.clear()
            self._met.clear()
        for native in natives:
            native.leave()


def _cloned(store: dist.Store, watch: Callable[[], None]) -> dist.Store:
    """Returns another client of a store, or the store itself if its class makes none, as classes written in Python do."""
    clones, ended = [store], threading.Event()

    def clone() -> None:
        with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
            clones.append(store.clone())
        ended.set()

    # A thread of its own: if the process with the store died, the clone of a TCPStore tries to reach it until the store's time limit.
    threading.Thread(target=clone, name="shoal-clones-a-store", daemon=True).start()
    while not ended.wait(0.2):
        watch()
    return clones[-1]


def _formed(form: Callable[[], _native.Communicator], watch: Callable[[], None]) -> _native.Communicator:
    """Returns ``form()``. If the store fails, and ``watch`` soon finds the reason, raises that."""
    try:
        return form()
    except ShoalError:
        raise
    except RuntimeError:
        end = time.monotonic() + _LOSS_KNOWN_S
        while time.monotonic() < end:
            watch()
            time.sleep(0.02)
        raise
