"""The actor that a Trainer places, one per rank, forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from dataclasses import dataclass
from functools import wraps
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal._core.process import session
from shoal._core.process import state as process
from shoal._distributed.saves import save_controls
from shoal.exceptions import TaskError, Unavailable
from shoal.train._context import _Here
from shoal.train._ranks import Place, here

_UNANSWERED_S = 8.0  # the head counts a node as dead after 5 s without a heartbeat, and the driver learns of it then


@dataclass(frozen=True)
class Role:
    """A worker's part in a training: its number and the variables of its environment. Flags: the number of workers may change, the training
    survives deaths of workers (``protected``) and the loss of a host (``replicated``), the worker trains on a CUDA device.
    ``logical_ranks``: 0 unless the training is deterministic; ``threads``: torch's, if it is."""

    worker: int
    environment: dict[str, str]
    elastic: bool = False
    newcomer: bool = False
    protected: bool = False
    replicated: bool = False
    use_gpu: bool = False
    logical_ranks: int = 0
    threads: int = 1


class TrainWorker:
    def place(self) -> Place:
        return here()

    def run(self, loop, config: dict[str, Any] | None, role: Role, driver: ActorHandle) -> Any:
        """Runs the loop of one rank, with a process group unless the loop initialises another: gloo, or Shoal's if it is elastic, and
        NCCL for a CUDA device.
        A worker that leaves returns None."""
        for name in [n for n in os.environ if n.startswith("TORCHELASTIC_")]:
            del os.environ[name]  # variables of a torchrun around the driver, whose store the ranks must not use
        os.environ.update(role.environment)
        _Here.driver, _Here.worker, _Here.elastic, _Here.newcomer = driver, role.worker, role.elastic, role.newcomer
        _Here.generation, _Here.reports, _Here.left = 1, 0, False
        _Here.protected, _Here.replicated = role.protected, role.replicated
        _Here.logical_ranks, _Here.holds = 0, False
        process.memory_group = driver._shoal_actor.id
        import torch.distributed as dist

        from shoal._distributed import ranks  # late: it imports torch, which the class does not need

        ranks.unanswered_s = _UNANSWERED_S if role.protected else 0.0
        if role.logical_ranks:
            from shoal.train._parts import begin_deterministic  # late: it imports torch, too

            begin_deterministic(role.logical_ranks, role.threads)
        _init_process_group(dist, _backend(role))
        _Here.gang = _Here.before = None
        try:
            result = _run(loop, () if config is None else (config,))
            if _Here.gang is not None:
                _Here.gang.print_costs()
            leave_all()
            _end_process_group(dist)
            return result
        except BaseException as error:
            if _Here.left:  # the others go on without this worker, whatever the loop does while it unwinds
                if type(error).__name__ != "WorkerLeaves":
                    traceback.print_exception(error)
                try:
                    leave_all()
                except Exception as failed:  # such as that of a save, which workers that stay have as well
                    traceback.print_exception(failed)
                _end_process_group(dist)
                return None
            if isinstance(error, SystemExit):  # sys.exit() in the loop becomes a TaskError with a traceback
                text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                raise TaskError(error, text, "the training loop", os.getpid(), session().host) from None
            raise
        finally:
            _Here.driver = _Here.gang = _Here.before = None


def _end_process_group(dist) -> None:
    """Not for a loop that has failed: other ranks would fail by the end of its connections, and the driver could get their errors first."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _run(loop, arguments: tuple) -> Any:
    """Runs the loop, and runs it again when a worker has died and the others go on."""
    while True:
        try:
            return loop(*arguments)
        except BaseException as error:
            if type(error).__name__ == "RunAgain":
                error.gang.hand_on()
                continue
            if not isinstance(error, Exception):
                raise
            if _Here.left or _Here.gang is None or not _Here.gang.resume(error):
                raise


def leave_all() -> None:
    """Waits for the save under way, then leaves the models and groups of this process, also if that save has failed. After an exception,
    the driver reports that exception instead."""
    with contextlib.ExitStack() as last_first:
        for name in ("shoal.collective._group", "shoal.fsdp._engine.bootstrap"):  # a loop without them does not need their imports
            if (module := sys.modules.get(name)) is not None:
                last_first.callback(module.leave_all)
        for control in save_controls:
            last_first.callback(control.wait)


def _backend(role: Role) -> str:
    """Returns the backends of the process group, and makes the worker's device the current one. Raises Unavailable if torch finds none."""
    on_cpu = "shoal" if role.elastic else "gloo"
    if not role.use_gpu:
        return on_cpu
    import torch

    if not torch.cuda.is_available():
        raise Unavailable(
            f"use_gpu=True, and torch {torch.__version__} finds no CUDA device on {session().host}",
            hint="install a torch for CUDA and the driver of the GPU on each node, or train without use_gpu",
        )
    torch.cuda.set_device(0)  # the only one that the worker sees
    return f"cpu:{on_cpu},cuda:nccl"


def _init_process_group(dist, backends: str) -> None:
    """Initialises the process group, for rendezvous and the user's collectives. Keeps its store until this process ends, which is after the
    ends of all loops: other ranks may still form a group when the loop of the store's process has ended.

    Allows one further initialisation, by a loop written for torchrun. Each later group has a part of that store for itself. A new store at
    the same port would be the former one for a rank that connects before the store's process has left its group. An elastic training keeps
    its own group, which changes with its workers and ends their waits when one of them dies.
    """
    if _Here.elastic:
        from shoal.train._meeting import first_process_group  # late: it imports torch

        _Here.store = first_process_group(backends)
    else:
        _Here.store, rank, size = next(dist.rendezvous("env://"))
        dist.init_process_group(backends, store=dist.PrefixStore("group/0", _Here.store), rank=rank, world_size=size)
    original, groups = dist.init_process_group, itertools.count(1)

    @wraps(original)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *args, **kwargs):
        if _Here.elastic:  # a loop that runs again calls it again
            on_cpu = (backend or "shoal").lower().removeprefix("cpu:").partition(",")[0]
            if dist.is_initialized() and on_cpu in ("gloo", "shoal"):
                return
        number = next(groups)
        if number == 1 and dist.is_initialized():
            if backend in (None, "gloo", "cpu:gloo", backends):
                return
            dist.destroy_process_group()
        if store is None and init_method in (None, "env://") and not _Here.elastic:
            try:
                own = _Here.store.clone()
            except (AttributeError, NotImplementedError, RuntimeError):  # its class makes none
                own = _Here.store
            init_method, store = None, dist.PrefixStore(f"group/{number}", own)
            if timeout is not None:
                store.set_timeout(timeout)
            rank = int(os.environ["RANK"]) if rank < 0 else rank
            world_size = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
        original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)

    dist.init_process_group = init_process_group
