"""Functions for training loops: this worker's rank, and metrics for the driver."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from shoal._core.variables import variable
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
    worker = current_worker()
    number = {name: int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    return TrainContext(
        number["WORLD_SIZE"],
        number["RANK"],
        number["LOCAL_RANK"],
        int(variable("LOCAL_WORLD_SIZE", number["WORLD_SIZE"])),
        int(variable("GROUP_RANK", 0)),
        worker is not None and worker.joins,
    )


def report(metrics: dict[str, Any]) -> None:
    """Sends this worker's metrics to the driver; rank 0's go into the Result. It is a barrier: every rank must report equally often.

    A worker that joins an elastic training reports from its first step on; earlier reports are dropped. With ``deterministic=True``,
    reports in all but the last part of a batch are dropped, too.

    Outside a Trainer (torchrun, ``shoal submit``) ``report`` does nothing, so that a loop runs under any launcher.
    """
    if not isinstance(metrics, dict):
        raise TypeError(f"report() takes a dict of metrics, not {type(metrics).__name__}")
    if (worker := current_worker()) is not None:
        worker.report(metrics)
