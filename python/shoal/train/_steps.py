"""The iteration of a training loop over the batches of all workers together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from shoal.exceptions import InvalidArgument
from shoal.train._batches import Feeder, check_loader
from shoal.train._gang import Gang
from shoal.train._state import State


def steps(loader: DataLoader, state: State, *, epochs: int | None = None) -> Iterator[Any]:
    """Yields this worker's part of every batch of ``loader``, which is written as for one process: its batches are those of all workers.

    All workers see the same order of samples, which ``state.seed`` and the epoch decide. Each collates its part of a batch, as even as
    possible. Gradients of sharded models are the mean over the whole batch. A loss that is a mean over its samples therefore trains alike
    with any number of workers. Each sample is used once per epoch, also where workers come and go, or where a training continues
    from ``State.load_state_dict``. A worker gets one sample that counts 0 where a batch has fewer samples than there are workers.

    ``epochs``: go on until that many epochs are complete. By default it ends with the current epoch; ``while state.epoch < epochs:``
    around it leaves room for an evaluation. In an elastic Trainer the number of workers changes between two batches.
    Raises InvalidArgument for another loader than a DataLoader over a dataset with indices, and for a second loader with one State.
    """
    check_loader(loader)
    if not isinstance(state, State):
        raise InvalidArgument(
            f"steps takes a shoal.train.State, not a {type(state).__name__}", hint="state = State(model=.., optimizer=..)"
        )
    if state.loader is not None and state.loader is not loader:
        raise InvalidArgument(
            "this State has the position of another loader", hint="use one DataLoader per State, and plain loops over others (evaluation)"
        )
    state.loader = loader
    return _iterate(loader, state, state.epoch + 1 if epochs is None else epochs, relative=epochs is None)


def _iterate(loader: DataLoader, state: State, until: int, relative: bool) -> Iterator[Any]:
    feeder: Feeder | None = None
    if state.gang is None:
        state.gang = Gang(state)  # a newcomer waits here for the others, and gets their position
        if relative:
            until = state.epoch + 1
    gang = state.gang
    try:
        while state.epoch < until:
            if gang.boundary():
                feeder = None
            if feeder is None:
                feeder = Feeder(loader, state.seed, state.epoch, state.batch, gang.rank, gang.size)
            given = feeder.next()
            if given is None:
                state.epoch, state.batch, feeder = state.epoch + 1, 0, None
                continue
            batch, state.samples, state.global_samples = given
            state.batch += 1
            state.step += 1
            gang.weigh(state.samples * gang.size / state.global_samples)
            yield batch
    finally:
        gang.weigh(None)
