"""Functions for training loops: this worker's rank, and metrics for the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal._core import serialize
from shoal._core.telemetry import record_metrics, waiting
from shoal._core.variables import variable
from shoal._objects.values import get
from shoal.exceptions import InvalidArgument
from shoal.train._worker import current_worker


@dataclass(frozen=True)
class TrainContext:
    """This worker's ranks among the workers of its Trainer, of torchrun, or of ``shoal submit --num-workers``. ``joins``: True in an
    elastic training where the loop of a new worker, or a loop that runs again after a death, gets model, optimizers and State from loops
    that train already. Such a loop needs no checkpoint."""

    world_size: int
    world_rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    joins: bool = False

    def get_world_size(self) -> int:
        return self.world_size

    def get_world_rank(self) -> int:
        return self.world_rank

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_local_world_size(self) -> int:
        return self.local_world_size

    def get_node_rank(self) -> int:
        return self.node_rank


def get_context() -> TrainContext:
    """Returns the context, from the environment variables that every launcher sets. Raises InvalidArgument outside a training loop."""
    if not variable("RANK"):
        raise InvalidArgument(
            "this process has no training context", hint="call it in a Trainer's loop, or start with torchrun or shoal submit --num-workers"
        )
    w = current_worker()
    return TrainContext(
        world_size=int(os.environ["WORLD_SIZE"]),
        world_rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_world_size=int(variable("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])),
        node_rank=int(variable("GROUP_RANK", 0)),
        joins=w is not None and (w.generation == 0 or w.predecessor is not None),
    )


_receiver: Callable[[dict[str, Any]], None] | None = None


def send_reports_to(receiver: Callable[[dict[str, Any]], None]) -> None:
    """Makes ``report`` call this function, in a rank whose launcher is no Trainer but takes metrics, too."""
    global _receiver
    _receiver = receiver


def report(metrics: dict[str, Any]) -> None:
    """Sends this worker's metrics to the driver; rank 0's go into the Result. It is a barrier: every rank must report equally often.
    Plain tensors of devices arrive in the host's memory.

    In an elastic training on devices, it waits until the last step counts on all workers.
    A worker that joins an elastic training reports from its first step on; earlier reports are dropped. With ``deterministic=True``,
    reports in all but the last part of a batch are dropped, too.

    ``shoal.ray.run`` takes rank 0's reports without a barrier. Under torchrun and ``shoal submit``, ``report`` does nothing, so that a loop
    runs under any launcher; a tracker's ``receive_reports`` changes that (``shoal.trackers``).
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"report() takes a dict of metrics, not {type(metrics).__name__}")
    if _receiver is not None:
        _receiver(metrics)
        return
    w = current_worker()
    if w is None:
        record_metrics(metrics, first=variable("RANK", "0") == "0")
        return
    if w.generation == 0 or w.left or w.mid_batch:
        return
    record_metrics(metrics, first=os.environ.get("RANK") == "0")
    with waiting():
        if w.gang is not None:
            w.gang.await_step()
        w.num_reports += 1
        get(w.driver.report.remote(w.role.number, w.generation, w.num_reports, serialize.OnHost(metrics)))
