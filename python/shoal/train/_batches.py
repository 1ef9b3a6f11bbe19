"""A loader's batches, divided among the workers: each one reads only its part of every batch."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.train._state import random_states, set_random_states


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
        self._seed_all(seed)
        self._inside = random_states()
        set_random_states(outside)

    @staticmethod
    def _seed_all(seed: int) -> None:
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % (1 << 32))

    def __enter__(self) -> None:
        self._outside = random_states()
        set_random_states(self._inside)

    def __exit__(self, *exc) -> None:
        self._inside = random_states()
        set_random_states(self._outside)


def mixed(*numbers: int) -> int:
    """Returns a seed that depends on all the numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


class _Parts:
    """A batch sampler that yields this rank's indices of each batch, from batch ``first`` on. ``sizes`` gets (own, global) in order."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, rank: int, world_size: int):
        self._loader, self._epoch, self._first = loader, epoch, first
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self.sizes: deque[tuple[int, int]] = deque()

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
            own = [indices[i] for i in part_of(len(indices), self._rank, self._world_size)]
            self.sizes.append((len(own), len(indices)))
            # A worker without a sample computes one all the same, whose gradients count 0, because every worker takes part in every step.
            yield own or indices[:1]


class Feeder:
    """This rank's parts of one epoch's batches, from a position on, read as the loader would read them."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, rank: int, world_size: int):
        self._parts = _Parts(loader, seed, epoch, first, rank, world_size)
        own = torch.Generator().manual_seed(mixed(seed, epoch, first, rank))
        options = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
        self._batches = iter(
            DataLoader(
                loader.dataset,
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

    def next(self) -> tuple[Any, int, int] | None:
        """Returns (batch, samples of this rank, samples of all), or None at the end of the epoch. The batch of a rank without samples has
        one, and the number is 0."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        return batch, *self._parts.sizes.popleft()
