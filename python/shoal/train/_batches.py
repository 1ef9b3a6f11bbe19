"""A loader's batches, divided among the workers: each one reads only its part of every batch."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.train._state import random_states, seed_all, set_random_states


def check_loader(loader: Any) -> None:
    """Raises InvalidArgument or Unimplemented for a loader whose batches ``steps`` cannot divide."""
    if not isinstance(loader, DataLoader):
        raise InvalidArgument(
            f"steps takes a torch.utils.data.DataLoader, not a {type(loader).__name__}",
            hint="write a Dataset with __getitem__ and __len__, and a DataLoader over it, as for one process",
        )
    if isinstance(loader.dataset, IterableDataset):
        raise Unimplemented(
            "steps over an IterableDataset is not in this release: a new worker could not find its place in it",
            hint="write a Dataset with __getitem__ and __len__",
        )
    if loader.batch_sampler is None:
        raise InvalidArgument("steps divides batches, and this DataLoader has batch_size=None", hint="pass it the size of the global batch")
    if any(isinstance(s, DistributedSampler) for s in (loader.sampler, getattr(loader.batch_sampler, "sampler", None))):
        raise InvalidArgument(
            "steps divides each batch among the workers, and this DataLoader has a DistributedSampler, which divides the data already",
            hint="leave the sampler out, and let batch_size be that of all workers together",
        )


def part_of(size: int, rank: int, world_size: int) -> range:
    """The positions of a batch of ``size`` samples that a rank gets: all ranks' parts follow each other, and differ by one at most."""
    return range(rank * size // world_size, (rank + 1) * size // world_size)


class _Apart:
    """Runs a batch sampler's code with generators of random numbers of its own, seeded alike on every worker."""

    def __init__(self, seed: int):
        outside = random_states()
        seed_all(seed)
        self._inside = random_states()
        set_random_states(outside)

    def __enter__(self) -> None:
        self._outside = random_states()
        set_random_states(self._inside)

    def __exit__(self, *exc) -> None:
        self._inside = random_states()
        set_random_states(self._outside)


def mixed(*numbers: int) -> int:
    """Returns a seed that depends on all the numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True)
class Shares:
    """The parts of each batch that this worker reads, one after the other. ``of``: the number of parts. ``seeded``: random number
    generators are seeded before a part is read, so that its samples do not depend on the worker that reads it."""

    mine: range
    of: int
    seeded: bool = False


@dataclass(frozen=True)
class Given:
    """A part of a batch. ``samples``: its size. A part without samples has one sample all the same, and its size is 0."""

    batch: Any
    part: int
    samples: int
    global_samples: int


class _Indices(list):
    """The indices of a part, with the seed for reading it."""

    seed = 0


class _Seeded:
    """The loader's dataset, but its samples are read with generators that are seeded for their part."""

    def __init__(self, dataset: Any):
        self.__dict__["_dataset"] = dataset

    def __getitems__(self, indices: _Indices) -> Any:
        seed_all(indices.seed)
        dataset = self.__dict__["_dataset"]
        several = getattr(dataset, "__getitems__", None)
        return several(indices) if callable(several) else [dataset[i] for i in indices]

    def __len__(self) -> int:
        return len(self.__dict__["_dataset"])

    def __getattr__(self, name: str) -> Any:
        if "_dataset" not in self.__dict__:  # before pickle has restored it
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_dataset"], name, value)


class _Parts:
    """A batch sampler that yields the indices of this worker's parts of each batch, from batch ``first`` on. ``sizes`` gets (part, own,
    global) in order."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, shares: Shares):
        self._loader, self._epoch, self._first = loader, epoch, first
        self._seed, self._shares = seed, shares
        self.sizes: deque[tuple[int, int, int]] = deque()

    def _batches(self) -> Iterator[list]:
        """The epoch's batches in the order that all workers share."""
        sampler = self._loader.batch_sampler
        samplers = (sampler, getattr(sampler, "sampler", None), self._loader.sampler)
        for s in {id(s): s for s in samplers if s is not None}.values():
            if callable(getattr(s, "set_epoch", None)):
                s.set_epoch(self._epoch)
        generators = [self._loader.generator, *(getattr(s, "generator", None) for s in samplers)]
        for g in {id(g): g for g in generators if isinstance(g, torch.Generator)}.values():
            g.manual_seed(mixed(self._seed, self._epoch))
        apart = _Apart(mixed(self._seed, self._epoch))
        with apart:
            batches = iter(sampler)
        while True:
            with apart:
                indices = next(batches, None)
            if indices is None:
                return
            yield list(indices)

    def __iter__(self) -> Iterator[list]:
        for number, indices in enumerate(self._batches()):
            if number < self._first or not indices:
                continue
            for part in self._shares.mine:
                own = [indices[i] for i in part_of(len(indices), part, self._shares.of)]
                self.sizes.append((part, len(own), len(indices)))
                # A part without samples gets one sample, whose gradients have weight 0, because every worker takes part in every step.
                given = own or indices[:1]
                if self._shares.seeded:
                    given = _Indices(given)
                    given.seed = mixed(self._seed, self._epoch, number, part)
                yield given


class Feeder:
    """This worker's parts of one epoch's batches, from a position on. They are read as the loader would read them."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, shares: Shares):
        self._parts = _Parts(loader, seed, epoch, first, shares)
        own = torch.Generator().manual_seed(mixed(seed, epoch) if shares.seeded else mixed(seed, epoch, first, shares.mine[0]))
        options = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
        self._batches = iter(
            DataLoader(
                _Seeded(loader.dataset) if shares.seeded else loader.dataset,
                batch_sampler=self._parts,
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                generator=own,
                **options,
            )
        )

    def next(self) -> Given | None:
        """Returns the next part, or None at the end of the epoch."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        return Given(batch, *self._parts.sizes.popleft())
