"""The iteration of a training loop over the batches of all workers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from shoal._core.telemetry import Activity, at, begin_batch, number_step
from shoal.exceptions import InvalidArgument
from shoal.train._data.batches import BatchPart, Feeder, check_loader
from shoal.train._data.order import check_repeats
from shoal.train._elastic_gang import ElasticGang
from shoal.train._gang import Gang
from shoal.train._state import State
from shoal.train._worker import current_worker


def steps(loader: DataLoader, state: State, *, epochs: int | None = None, max_steps: int | None = None) -> Iterator[Any]:
    """Yields this worker's part of every batch of ``loader``. Write the loader as for one process: its batches are divided among all
    workers.

    All workers see the same order of samples, which ``state.seed`` and the epoch decide. Each worker collates its part of a batch; the
    parts are as even as possible. Gradients of sharded models are the mean over the whole batch. So a loss that is a mean over its samples
    trains alike with any number of workers. Each sample is used once per epoch, also if workers come and go, or if a training continues
    from ``State.load_state_dict``. If a batch has fewer samples than there are workers, a worker without a sample gets one with weight 0.

    With ``ScalingConfig(deterministic=True)`` a batch has one part per logical rank, and the loop's body runs once for each part of this
    worker. Steps of the optimizer and of schedulers in ``state``, ``zero_grad``, ``shoal.optim.clip_grad_norm_`` and ``report`` take effect
    in the last part only. Put other work of a step's end under ``if state.last_part:``.

    ``epochs``: go on until that many epochs are complete. By default it ends with the current epoch; put it inside ``while state.epoch <
    epochs:`` to evaluate between epochs. ``max_steps``: end at the latest when ``state.step`` is that number; without ``epochs``, epochs
    follow each other until then. In an elastic Trainer the number of workers changes between two batches.
    The sampler's order depends on ``state.seed`` and the epoch alone: generators that the sampler holds, or its class, get a state of their
    own for each epoch, as the global ones do. Generators are those of ``random``, NumPy and torch.
    Raises InvalidArgument for another loader than a DataLoader over a dataset with indices, and for a second loader with one State. Raises
    it, too, for a sampler whose order depends on more: at the first batch if the workers may change. In other trainings it compares the
    workers' orders at the begin of each epoch, once ``State.mean`` has connected the workers.
    """
    return _iterate(_Loop(loader, state, epochs, max_steps))


def run(
    step: Callable[[Any, State], Any],
    loader: DataLoader,
    state: State,
    *,
    epochs: int | None = None,
    max_steps: int | None = None,
) -> None:
    """Calls ``step(batch, state)`` for each batch that :func:`steps` would yield, with the same arguments.

    A step can run again: if a worker of an elastic Trainer dies, the survivors stop their step. A step counts once every worker has
    recorded its part in ``optimizer.step()``. The survivors finish a step that counts. They run any other step again, with the same batch
    divided among them. So put everything that a step changes into ``state``: models, the optimizer, and other objects with a
    ``state_dict``. Random number generators begin a repeated step in the state of its first attempt. A death may cut off the code after
    ``optimizer.step()``. Call functions that need other workers before it, and ``report`` last.
    """
    loop = _Loop(loader, state, epochs, max_steps)
    try:
        while True:
            try:
                if (part := loop.next()) is None:
                    break
                step(part.batch, state)
            except Exception as error:
                loop.recover(error)
        if loop.gang is not None:
            loop.gang.repeats = False  # a loop over steps may follow
    finally:
        if loop.gang is not None:
            loop.gang.end_parts()


def _iterate(loop: _Loop) -> Iterator[Any]:
    try:
        while (part := loop.next()) is not None:
            yield part.batch
    finally:
        if loop.gang is not None:
            loop.gang.end_parts()


class _Loop:
    """The position of one loop over the batches."""

    def __init__(self, loader: DataLoader, state: State, epochs: int | None, max_steps: int | None):
        check_loader(loader)
        if not isinstance(state, State):
            raise InvalidArgument(
                f"steps takes a shoal.train.State, not a {type(state).__name__}", hint="state = State(model=.., optimizer=..)"
            )
        if state.loader is not None and state.loader is not loader:
            raise InvalidArgument(
                "this State has the position of another loader",
                hint="use one DataLoader per State, and plain loops over others (evaluation)",
            )
        self._loader = state.loader = loader
        self._state = state
        self._relative = epochs is None and max_steps is None  # the loop ends with the current epoch
        self._until = state.epoch + 1 if self._relative else epochs
        self._max_steps = max_steps
        self._feeder: Feeder | None = None
        self._opened = False  # this loop has been at a boundary
        self._within = False  # further parts of the current batch follow
        self.gang: Gang | None = state.gang

    def next(self) -> BatchPart | None:
        """Returns this worker's next part of a batch, or None at the end."""
        state = self._state
        if state.gang is None:
            state.gang = self._enter_gang()  # a newcomer waits here for the others, and gets their position
            if self._relative:
                self._until = state.epoch + 1
        self.gang = gang = state.gang
        if not self._within:
            begin_batch()
        while self._within or not self._complete():
            if not self._within:
                opens, self._opened = not self._opened, True
                if gang.boundary(opens):
                    self._feeder = None
            if self._feeder is None:
                self._feeder = Feeder(self._loader, state.seed, state.epoch, state.batch, state.drawn, gang.shares)
            with at(Activity.LOADER):
                part = self._feeder.next()
            if part is None:
                if state.batch == 0 and self._until is None:
                    raise InvalidArgument(f"an epoch of this loader has no batch, so it never makes max_steps={self._max_steps} steps")
                state.epoch, state.batch, state.drawn, self._feeder = state.epoch + 1, 0, 0, None
                continue
            if not self._within:
                state.batch, state.step, state.drawn = state.batch + 1, state.step + 1, part.drawn
                if state.batch == 1:  # compares the epoch's order at once; boundaries of an elastic training do so one batch later
                    gang.agree(0)
                number_step(state.step)
            state.samples, state.global_samples = part.samples, part.global_samples
            self._within = part.number != gang.shares.parts[-1]
            gang.begin_part(part)
            return part
        gang.end_steps()
        return None

    def _enter_gang(self) -> Gang:
        state, worker = self._state, current_worker()
        elastic = worker is not None and worker.scaling.elastic
        if elastic:
            check_repeats(self._loader, state.seed, state.epoch)
        gang = ElasticGang(state, worker) if elastic else Gang(state, worker)
        gang.enter()
        return gang

    def _complete(self) -> bool:
        state = self._state
        return (self._until is not None and state.epoch >= self._until) or (self._max_steps is not None and state.step >= self._max_steps)

    def recover(self, error: Exception) -> None:
        """Goes on after the death of another worker, or raises ``error``."""
        self._feeder, self._within = None, False
        if self.gang is None:
            raise error
        self.gang.repeats = True
        self.gang.recover(error)
