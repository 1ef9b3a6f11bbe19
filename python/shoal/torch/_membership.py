"""A process group that gets other members: ``torch.distributed._reconfigure`` of newer torch.

Each process has a handle. The members of the next generation pass all handles in the order of their ranks, meet through a store, and make a
new communicator. Until all of them have come, the former one is as it was, so a call that fails can be made again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from shoal.exceptions import Cancelled, DeadlineExceeded, InvalidArgument, Unavailable
from shoal.torch._errors import as_torch

_KIND = "shoal"


@dataclass(frozen=True)
class Handle:
    """The name of a process for others. ``host``, ``port``: the address of its store, if that is a TCPStore; else empty and 0."""

    token: str
    host: str
    port: int

    def text(self) -> str:
        return f"{_KIND}:{self.token}:{self.port}:{self.host}"


def parse(text: str) -> Handle:
    parts = text.split(":", 3)
    if len(parts) != 4 or parts[0] != _KIND or not parts[1] or not parts[2].isdecimal():
        raise InvalidArgument(f"{text!r} is not a handle of the backend shoal", hint="pass what get_reconfigure_handle() returned")
    return Handle(parts[1], parts[3], int(parts[2]))


def make_handle(store: dist.Store) -> Handle:
    """Returns a new handle of this process, which can be reached through the store."""
    root, token = root_of(store), secrets.token_hex(8)
    return Handle(token, root.host, root.port) if isinstance(root, dist.TCPStore) else Handle(token, "", 0)


def root_of(store: dist.Store) -> dist.Store:
    """Returns the store without prefixes, which processes with other prefixes share."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


@dataclass(frozen=True)
class Members:
    """The members of a generation, by rank."""

    handles: tuple[Handle, ...]
    rank: int
    name: str  # the same for all members, and for no other generation

    @property
    def size(self) -> int:
        return len(self.handles)


def members_of(uuid: int, handles: set[str] | Sequence[str], own: Handle) -> Members:
    """Returns the members: in the order of a list, or sorted by their handles for a set."""
    texts = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
    if not texts:
        raise InvalidArgument("a process group without members", hint="pass the handle of every member")
    if len(set(texts)) != len(texts):
        raise InvalidArgument("a handle is there twice", hint="pass one handle for each member")
    if own.text() not in texts:
        raise InvalidArgument("this process's handle is not among those of the new members", hint="only members call _reconfigure")
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    return Members(tuple(map(parse, texts)), texts.index(own.text()), f"{uuid}-{digest}")


def meeting_store(members: Members, store: dist.Store, timeout: timedelta) -> dist.Store:
    """Returns a store of all members: this process's, or that of rank 0 if it is another one."""
    own, first = members.handles[members.rank], members.handles[0]
    root = root_of(store)
    if first.port and (first.host, first.port) != (own.host, own.port):
        root = dist.TCPStore(first.host, first.port, is_master=False, wait_for_workers=False, timeout=timeout)
    return dist.PrefixStore(f"shoal/generation/{members.name}", root)


def meet(members: Members, store: dist.Store, timeout: timedelta) -> None:
    """Waits for all members; raises ``DeadlineExceeded`` with the ranks of the missing ones."""
    keys = [f"here/{rank}" for rank in range(members.size)]
    store.set(keys[members.rank], "")
    try:
        store.wait(keys, timeout)
    except RuntimeError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if not missing:
            return
        raise DeadlineExceeded(
            f"ranks {missing} of the new members did not come within {timeout.total_seconds():g} s: the process group is as it was",
            hint="agree on the living members, and call _reconfigure with their handles and a fresh uuid",
        ) from None


class Unformed:
    """Stands for the communicator of a group before its first generation: operations raise ``Unavailable``."""

    transport = "none"

    def __getattr__(self, name: str):
        raise as_torch(
            Unavailable("the process group has no members yet", hint="call torch.distributed._reconfigure() with every member's handle")
        )

    def abort(self, cause: str) -> None:
        return None

    def leave(self) -> None:
        return None

    def failed(self) -> None:
        return None

    def lost(self) -> list[int]:
        return []


def error_type(error: BaseException | None) -> ErrorType:
    """Returns torch's name for the cause of a group's end. An abort was requested, so it is no error."""
    if error is None or isinstance(error, Cancelled):
        return ErrorType.SUCCESS
    if isinstance(error, DeadlineExceeded):
        return ErrorType.TIMEOUT
    return ErrorType.REMOTE_ERROR if isinstance(error, Unavailable) else ErrorType.COMM_ERROR
