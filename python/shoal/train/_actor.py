"""The actor that a Trainer places, one per rank, forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal._core.process import session
from shoal._core.process import state as process
from shoal._distributed.saves import save_controls
from shoal.exceptions import TaskError, Unavailable
from shoal.train._ranks import Place, own_place
from shoal.train._scaling_config import ScalingConfig
from shoal.train._worker import Role, RunAgain, Worker, WorkerLeaves

_UNANSWERED_S = 8.0  # the head counts a node as dead after 5 s without a heartbeat, and the driver learns of it then


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
        import torch.distributed as dist

        from shoal._distributed import ranks  # late: it imports torch, which the class does not need

        worker = Worker(role, driver)
        ranks.unanswered_s = _UNANSWERED_S if role.scaling.protected else 0.0
        if role.scaling.logical_ranks:
            from shoal.train._parts import begin_deterministic  # late: it imports torch, too

            begin_deterministic(role.scaling)
        _init_process_group(dist, worker)
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
                except Exception as failed:  # such as that of a save, which workers that stay have as well
                    traceback.print_exception(failed)
                _end_process_group(dist)
                return None


def _end_process_group(dist) -> None:
    """Not for a loop that has failed: other ranks would fail by the end of its connections, and the driver could get their errors first."""
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
    """Waits for the save under way, then leaves the models and groups of this process, also if that save has failed. After an exception,
    the driver reports that exception instead."""
    with contextlib.ExitStack() as last_first:
        for name in ("shoal.collective._group", "shoal.fsdp._engine.bootstrap"):  # a loop without them does not need their imports
            if (module := sys.modules.get(name)) is not None:
                last_first.callback(module.leave_all)
        for control in save_controls:
            last_first.callback(control.wait)


def _take_device(scaling: ScalingConfig) -> str:
    """Makes the worker's device the current one. Returns the backends of the process group. Raises Unavailable if torch finds no device."""
    on_cpu = "shoal" if scaling.elastic else "gloo"
    if not scaling.use_gpu:
        return on_cpu
    import torch

    if not torch.cuda.is_available():
        raise Unavailable(
            f"use_gpu=True, and torch {torch.__version__} finds no CUDA device on {session().host}",
            hint="install a torch for CUDA and the driver of the GPU on each node, or train without use_gpu",
        )
    if scaling.elastic:  # a death ends no survivor: ``AbortOnDeath`` ends the waits of its kernels
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    torch.cuda.set_device(int(os.environ.get("SHOAL_LOCAL_DEVICE", "0")))
    return f"cpu:{on_cpu},cuda:nccl"


def _init_process_group(dist, worker: Worker) -> None:
    """Initialises the process group, for rendezvous and the user's collectives. Keeps its store until this process ends, which is after the
    ends of all loops: other ranks may still form a group when the loop of the store's process has ended.

    Allows one further initialisation, by a loop written for torchrun. Each later group has a part of that store for itself. A new store at
    the same port would be the former one for a rank that connects before the store's process has left its group. An elastic training keeps
    its own group, which changes with its workers and ends their waits when one of them dies.
    """
    backends, elastic = _take_device(worker.scaling), worker.scaling.elastic
    if elastic:
        from shoal.train._meeting import first_process_group  # late: it imports torch

        worker.store = first_process_group(worker, backends)
    else:
        worker.store, rank, size = next(dist.rendezvous("env://"))
        dist.init_process_group(backends, store=dist.PrefixStore("group/0", worker.store), rank=rank, world_size=size)
    original, groups = dist.init_process_group, itertools.count(1)

    @wraps(original)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *args, **kwargs):
        if elastic:  # a loop that runs again calls it again
            on_cpu = (backend or "shoal").lower().removeprefix("cpu:").partition(",")[0]
            if dist.is_initialized() and on_cpu in ("gloo", "shoal"):
                return
        number = next(groups)
        if number == 1 and dist.is_initialized():
            if backend in (None, "gloo", "cpu:gloo", backends):
                return
            dist.destroy_process_group()
        if store is None and init_method in (None, "env://") and not elastic:
            try:
                own = worker.store.clone()
            except (AttributeError, NotImplementedError, RuntimeError):  # its class makes none
                own = worker.store
            init_method, store = None, dist.PrefixStore(f"group/{number}", own)
            if timeout is not None:
                store.set_timeout(timeout)
            rank = int(os.environ["RANK"]) if rank < 0 else rank
            world_size = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
        original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)

    dist.init_process_group = init_process_group
