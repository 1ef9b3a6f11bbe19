"""A loader's batches, divided among the workers: each one reads only its part of every batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.train._data.order import Order, checksum, mixed, other_position
from shoal.train._state import seed_all


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


@dataclass(frozen=True)
class Shares:
    """The parts of each batch that this worker reads, one after the other, among ``num_parts``. ``seeded``: random number generators are
    seeded before a part is read, so that its samples do not depend on the worker that reads it."""

    parts: range
    num_parts: int
    seeded: bool = False


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch. ``batch``: its samples, as the loader collates them. ``number``: its place among the batch's parts. ``samples``
    and ``global_samples``: how many samples this part and the whole batch have. Where ``samples`` is 0, ``batch`` has one sample of
    weight 0, because every worker takes part in every step. ``drawn``: the checksum of the epoch's batches up to this one."""

    batch: Any
    number: int
    samples: int
    global_samples: int
    drawn: int


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


class _PartSampler:
    """A batch sampler that yields the indices of this worker's parts of each batch, from batch ``first`` on. ``drawn``: the checksum of all
    batches before; 0 if it is unknown. ``sizes`` gets (part, own, global, checksum) in order."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, drawn: int, shares: Shares):
        self._loader, self._epoch, self._first, self._drawn = loader, epoch, first, drawn
        self._seed, self._shares = seed, shares
        self.sizes: deque[tuple[int, int, int, int]] = deque()

    def __iter__(self) -> Iterator[list]:
        drawn = number = 0
        for number, indices in enumerate(Order(self._loader, self._seed, self._epoch)):
            if number == self._first > 0 and self._drawn not in (0, drawn):
                raise other_position(self._loader, self._first, self._epoch)
            drawn = checksum(drawn, indices)
            if number < self._first or not indices:
                continue
            for part in self._shares.parts:
                own = [indices[i] for i in part_of(len(indices), part, self._shares.num_parts)]
                self.sizes.append((part, len(own), len(indices), drawn))
                # A part without samples gets one sample, whose gradients have weight 0, because every worker takes part in every step.
                given = own or indices[:1]
                if self._shares.seeded:
                    given = _Indices(given)
                    given.seed = mixed(self._seed, self._epoch, number, part)
                yield given
        if number < self._first and self._drawn not in (0, drawn):  # the epoch ends before the position, or at it
            raise other_position(self._loader, self._first, self._epoch)


class Feeder:
    """This worker's parts of one epoch's batches, from a position on. They are read as the loader would read them. Raises InvalidArgument
    if the sampler has drawn other batches before that position than ``drawn`` says."""

    def __init__(self, loader: DataLoader, seed: int, epoch: int, first: int, drawn: int, shares: Shares):
        self._parts = _PartSampler(loader, seed, epoch, first, drawn, shares)
        own = torch.Generator().manual_seed(mixed(seed, epoch) if shares.seeded else mixed(seed, epoch, first, shares.parts[0]))
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

    def next(self) -> BatchPart | None:
        """Returns the next part, or None at the end of the epoch."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        return BatchPart(batch, *self._parts.sizes.popleft())
