"""The actor that a Trainer places, one per rank, forked from a process that has imported torch."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal._core.process import session
from shoal.exceptions import TaskError
from shoal.train._context import _Here
from shoal.train._ranks import Place, here


class TrainWorker:
    def place(self) -> Place:
        return here()

    def run(self, loop, config: dict[str, Any] | None, environment: dict[str, str], driver: ActorHandle) -> Any:
        """Runs the loop of one rank, with a gloo process group unless the loop initialises another."""
        for name in [n for n in os.environ if n.startswith("TORCHELASTIC_")]:
            del os.environ[name]  # variables of a torchrun around the driver, whose store the ranks must not use
        os.environ.update(environment)
        _Here.driver, _Here.reports = driver, 0
        import torch.distributed as dist

        _init_process_group(dist)
        try:
            result = loop(config) if config is not None else loop()
            for name in ("shoal.fsdp._engine.bootstrap", "shoal.collective._group"):
                if (module := sys.modules.get(name)) is not None:
                    module.leave_all()  # only without an exception, because the driver reports an exception itself
            return result
        except SystemExit as error:  # sys.exit() in the loop becomes a TaskError with a traceback
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            raise TaskError(error, text, "the training loop", os.getpid(), session().host) from None
        finally:
            _Here.driver = None
            if dist.is_initialized():
                dist.destroy_process_group()


def _init_process_group(dist) -> None:
    """Initialises gloo, for rendezvous and the user's collectives. Allows one further initialisation, by a loop written for torchrun."""
    dist.init_process_group("gloo")
    original = dist.init_process_group

    def init_process_group(backend=None, *args, **kwargs):
        dist.init_process_group = original
        if dist.is_initialized() and backend in (None, "gloo", "cpu:gloo"):
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        original(backend, *args, **kwargs)

    dist.init_process_group = init_process_group
