"""The processes that take part in one change of meshes: those of the old mesh and those of the new one."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shoal._core.process import in_group
from shoal._distributed.communicator import Exchange, form_communicator
from shoal._distributed.ranks import attach, default_store
from shoal.exceptions import InvalidArgument, ShoalError, Unavailable


class Union:
    """The participants, a communicator among them, and their agreements. ``ranks``: their ranks in the default process group, ascending."""

    def __init__(self, old_owners: tuple[int, ...], new_ranks: tuple[int, ...]):
        self.ranks = tuple(sorted({*old_owners, *new_ranks}))
        self.rank = dist.get_rank()
        self.index = self.ranks.index(self.rank)
        # Counted in the store, because a newcomer has not taken part in earlier changes.
        key = f"shoal/reshard/{'-'.join(map(str, old_owners))}/{'-'.join(map(str, new_ranks))}"
        number = (default_store().add(key, 1) - 1) // len(self.ranks)
        exchange = Exchange(f"{key}/{number}", len(self.ranks), self.index)
        self.name = exchange("name", in_group(f"reshard-{secrets.token_hex(4)}").encode())[0].decode()  # unique among the job's changes
        host = attach(self.ranks)
        self.one_host = host.shared
        self.host_of = dict(zip(self.ranks, host.host_of_rank, strict=True))
        self.communicator = form_communicator(self.name, self.ranks, self.index, host.shared, spins=False)

    def hosts(self) -> list[int]:
        """The host of each rank of the default process group; 0 for ranks that take no part."""
        return [self.host_of.get(r, 0) for r in range(self.ranks[-1] + 1)]

    def all_gather(self, own: bytes) -> list[bytes]:
        sizes = torch.zeros(len(self.ranks), dtype=torch.int64)
        mine = torch.tensor([len(own)], dtype=torch.int64)
        self._all_gather(mine, sizes, [8] * len(self.ranks), "sizes")
        counts = sizes.tolist()
        data = torch.frombuffer(bytearray(own), dtype=torch.uint8) if own else torch.empty(0, dtype=torch.uint8)
        out = torch.empty(sum(counts), dtype=torch.uint8)
        self._all_gather(data, out, counts, "contents")
        return [part.numpy().tobytes() for part in out.split(counts)]

    def _all_gather(self, own: torch.Tensor, out: torch.Tensor, counts: list[int], what: str) -> None:
        call = (f"reshard: {what}", 0, 0.0, False)
        work = self.communicator.all_gather(memory_of(own), memory_of(out), counts, "uint8", call)
        work.wait()

    def agree(self, value: Any, error: Exception | None) -> list[Any]:
        """Returns every participant's value. If one participant has an error, all raise: that one its own error, the others one that names
        its rank."""
        if len(self.ranks) == 1 and error is None:
            return [value]
        answers = [pickle.loads(a) for a in self.all_gather(pickle.dumps((value, None if error is None else _portable(error))))]
        if error is not None:
            raise error
        for rank, (_, failed) in zip(self.ranks, answers, strict=True):
            if failed is not None:
                raise _of_rank(rank, *failed)
        return [answer for answer, _ in answers]

    def agreed(self, step: Callable[..., Any], *args: Any) -> list[Any]:
        """Runs a step on every rank. Raises on all if it fails on one. Returns all results, by participant."""
        value, error = None, None
        try:
            value = step(*args)
        except Exception as e:
            error = e
        return self.agree(value, error)

    def barrier(self) -> None:
        self.communicator.barrier(("reshard: all rows have arrived", 0, 0.0, False)).wait()

    def abort(self, error: BaseException) -> None:
        """Ends the waits of the other participants, with an error that has this cause."""
        self.communicator.abort(f"rank {self.rank} could not move the model to another mesh: {error}")

    def close(self) -> None:
        self.communicator.leave()


def memory_of(t: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of a contiguous tensor, as a Communicator takes it."""
    return t.data_ptr(), t.numel() * t.element_size()


def _portable(error: Exception) -> tuple[str, str, str]:
    if isinstance(error, ShoalError):
        return type(error).__name__, error.message, error.hint
    return "Unavailable", f"{type(error).__name__}: {error}", ""


def _of_rank(rank: int, kind: str, message: str, hint: str) -> ShoalError:
    kinds = {"InvalidArgument": InvalidArgument}
    return kinds.get(kind, Unavailable)(
        f"the model stays on its mesh, because rank {rank} cannot move it: {message}", reason="ReshardRefused", hint=hint
    )
