"""The actor that a Trainer places, one per rank, forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal._core import telemetry
from shoal._core.process import session
from shoal._core.process import state as process
from shoal._distributed.saves import save_controls
from shoal.exceptions import TaskError
from shoal.train._ranks import Place, own_place
from shoal.train._worker import Role, RunAgain, Worker, WorkerLeaves

_UNANSWERED_S = 8.0  # longer than the 5 s after which the head reports a node without heartbeats as dead to the driver


class TrainWorker:
    def place(self) -> Place:
        return own_place()

    def run(self, loop: Callable, config: dict[str, Any] | None, role: Role, driver: ActorHandle) -> Any:
        """Runs the loop of one rank, with a process group unless the loop initialises another: gloo, or Shoal's if it is elastic, and
        NCCL for a CUDA device.
        A worker that leaves returns None."""
        for name in [n for n in os.environ if n.startswith("TORCHELASTIC_")]:
            del os.environ[name]  # variables of a torchrun around the driver, whose store the ranks must not use
        os.environ.update(role.environment | {n: os.environ[n] for n in ("SHOAL_DEVICE_TRANSPORT",) if os.environ.get(n)})
        process.memory_group = driver._shoal_actor.id
        try:
            return self._run(loop, config, role, driver)
        except BaseException as error:
            telemetry.close(error)
            raise
        finally:
            telemetry.close()

    def _run(self, loop: Callable, config: dict[str, Any] | None, role: Role, driver: ActorHandle) -> Any:
        import torch.distributed as dist

        from shoal._distributed import ranks  # late: it imports torch, which the class does not need

        worker = Worker(role, driver)
        ranks.unanswered_s = _UNANSWERED_S if role.scaling.protected else 0.0
        if role.scaling.logical_ranks:
            from shoal.train._parts import begin_deterministic  # late: it imports torch, too

            begin_deterministic(role.scaling)
        _begin_process_group(worker)
        with worker.running():
            try:
                result = _run_loop(worker, loop, () if config is None else (config,))
                if worker.gang is not None:
                    worker.gang.print_costs()
                leave_all()
                _end_process_group(dist)
                return result
            except BaseException as error:
                if not worker.left:
                    if isinstance(error, SystemExit):  # sys.exit() in the loop becomes a TaskError with a traceback
                        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                        raise TaskError(error, text, "the training loop", os.getpid(), session().host) from None
                    raise
                # The others go on without this worker, whatever the loop does while it unwinds.
                if not isinstance(error, WorkerLeaves):
                    traceback.print_exception(error)
                try:
                    leave_all()
                except Exception as failed:  # such as the error of a save, which the workers that stay raise
                    traceback.print_exception(failed)
                _end_process_group(dist)
                return None


def _begin_process_group(worker: Worker) -> None:
    """Initialises the process group, for rendezvous and the user's collectives. The worker keeps its store until this process ends, after
    the ends of all loops: other ranks may still form a group when the loop of the store's process has ended."""
    from shoal.train._launch import process_group as group  # late: it imports torch

    elastic = worker.scaling.elastic
    backends = group.take_device(worker.scaling.use_gpu, elastic, session().host)
    if elastic:
        from shoal.train._meeting import first_process_group  # late: it imports torch

        worker.store = first_process_group(worker, backends)
    else:
        worker.store = group.first_group(backends)
    group.allow_another_group(lambda: worker.store, backends, elastic)


def _end_process_group(dist) -> None:
    """Not called for a loop that has failed: other ranks would fail when its connections end, and the driver could get their errors
    first."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _run_loop(worker: Worker, loop: Callable, arguments: tuple) -> Any:
    """Runs the loop, and runs it again when a worker has died and the others go on."""
    while True:
        try:
            return loop(*arguments)
        except RunAgain as again:
            again.gang.hand_on()
        except Exception as error:
            if worker.left or worker.gang is None:
                raise
            worker.gang.resume(error)


def leave_all() -> None:
    """Waits for the save under way, then leaves the models and groups of this process, also if that save has failed. It is not called
    after an exception in the loop, which the driver reports instead of the save's."""
    with contextlib.ExitStack() as last_first:
        for name in ("shoal.collective._group", "shoal.fsdp._engine.bootstrap"):  # a loop without them does not need their imports
            if (module := sys.modules.get(name)) is not None:
                last_first.callback(module.leave_all)
        for control in save_controls:
            last_first.callback(control.wait)
