"""The driver's side of a training run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _shoal_switch import ON

from shoal._actors.creation import create_gang
from shoal._actors.registry import kill
from shoal._core.process import session, started_by_node, state
from shoal._core.run_folders import drop_run_folder, new_run_folder
from shoal._core.telemetry import recording_driver
from shoal._core.variables import variable
from shoal._objects.refs import ObjectRef
from shoal._runtime_env import environment
from shoal.exceptions import InvalidArgument, ResourceExhausted
from shoal.train._actor import TrainWorker
from shoal.train._changes import Change
from shoal.train._driver.listeners import Listener, Listeners
from shoal.train._driver.membership import Membership
from shoal.train._driver.run import Run, Setup
from shoal.train._launch.settings import inherited_settings
from shoal.train._scaling_config import ScalingConfig


@dataclass(frozen=True)
class Result:
    """The result of a training run. ``metrics``: rank 0's last report; ``metrics_history``: all its reports in order; ``returns``: results
    of the loops, by rank. ``changes``: changes of the number of workers; ``failures``: errors of new workers that could not join."""

    metrics: dict[str, Any] = field(default_factory=dict)
    metrics_history: list[dict[str, Any]] = field(default_factory=list)
    returns: list[Any] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Trainer:
    """Runs ``train_loop_per_worker`` on ``scaling_config.num_workers`` workers, placed together or not at all.

    The loop gets ``train_loop_config`` as its argument, if given. Its environment has torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Local ranks count within a node, nodes are numbered in the
    order of their first ranks, and rank 0 listens at MASTER_ADDR. A process group is initialised, so that ``fully_shard`` works at once:
    over gloo, and of the backend ``shoal`` if the number of workers may change. With ``use_gpu`` it has NCCL for CUDA tensors too, and each
    worker's current device is its own (*unverified on hardware*).
    Workers inherit this process's ``SHOAL_FSDP``, ``SHOAL_INTERFACE``, ``SHOAL_LEASE_GUARD``, ``SHOAL_TIMEOUT``, ``SHOAL_TRANSPORT``,
    ``SHOAL_DEVICE_TRANSPORT``, ``SHOAL_GRACE``, ``SHOAL_NVTX``, ``SHOAL_RECORD`` and ``SHOAL_RUN_FOLDER``, unless a ``runtime_env`` sets
    them. With ``use_gpu`` they also inherit those that begin with ``NCCL_``, ``TORCH_NCCL_``, ``PYTORCH_``, ``CUDA_`` or ``CUBLAS_``. An
    interface that this process has got from its node is valid on this host only, and is not inherited.
    ``on_report``: called in the driver with rank 0's metrics at each report; a list has several. A tracker (``shoal.trackers``), or another
    object with methods ``on_begin(config)``, ``on_change(change)`` and ``on_end(error)``, gets these, too.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable,
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        on_report: Listener | Sequence[Listener] | None = None,
    ):
        if not callable(train_loop_per_worker):
            raise TypeError("train_loop_per_worker is a function")
        self._loop, self._config = train_loop_per_worker, train_loop_config
        self._scaling = scaling_config or ScalingConfig()
        self._listeners = Listeners(on_report)
        self._active: Run | None = None

    def fit(self) -> Result:
        """Runs the loop to its end. Ctrl-C ends the workers.

        Raises the error of the first failing worker (as its own class and as TaskError), or ActorDiedError if a worker died. Raises
        ResourceExhausted if no present node could ever hold a worker, and InvalidArgument in a process that is one of several ranks.
        """
        _refuse_ranks()
        scaling = self._scaling
        resources = scaling.resources
        scaling.check_run()
        s = session()
        count = _fitting(s.list("nodes"), resources, scaling) if scaling.elastic else scaling.maximum
        settings = _settings(s.folder, scaling.use_gpu)
        settings["SHOAL_RUN_FIT"] = fit = secrets.token_hex(8)
        folder = own = ""
        if _records(settings) and not (folder := _effective("SHOAL_RUN_FOLDER", settings)) and (own := new_run_folder()):
            settings["SHOAL_RUN_FOLDER"] = folder = own
        try:
            return self._fit(s, count, settings, lambda: recording_driver(folder, fit))
        finally:
            drop_run_folder(own)  # if the training could not begin

    def _fit(self, s: Any, count: int, settings: dict[str, str], recording: Callable[[], contextlib.AbstractContextManager]) -> Result:
        scaling = self._scaling
        resources = scaling.resources
        try:
            workers = create_gang(TrainWorker, count, resources=resources, torch=True, refuse_infeasible=True, env=settings)
        except ResourceExhausted as error:
            if scaling.use_gpu and "GPU" in str(error):
                error.hint = "the nodes offer the GPUs that CUDA_VISIBLE_DEVICES names: see `shoal list nodes`, or train without use_gpu"
            elif state.cluster is not None:  # a private cluster, which no further node will join
                error.hint = (
                    f"CPUs are logical: begin with shoal.init(num_cpus={count * resources['CPU']:g}), or ask for less with "
                    "ScalingConfig(resources_per_worker=...)"
                )
            else:
                error.hint = (
                    "ask for less with ScalingConfig(num_workers=..., resources_per_worker=...), start a node with more CPUs, which are "
                    "logical: shoal start --num-cpus N, or add a node: shoal start --address HOST:PORT"
                )
            raise
        setup = Setup(self._loop, self._config, self._listeners, scaling, settings)
        members = tuple(range(count))
        membership = Membership(scaling.minimum, scaling.maximum, members, scaling.first_target, protected=scaling.protected)
        with recording() as record:
            run = Run(s, setup, membership, workers, record)
            self._listeners.begin(self._config)
            try:
                result = self._run(run)
            except BaseException as error:
                self._listeners.end(error)
                raise
            self._listeners.end(None)
            return result

    def scale(self, num_workers: int) -> ObjectRef:
        """Changes the number of workers of a running ``fit``, from any thread. Returns at once, with a reference to the :class:`Change`.

        The reference is ready when all workers train together; ``get`` of it raises if a new worker failed. New workers wait for free
        resources. Raises InvalidArgument if no ``fit`` runs, and for a number outside of ``ScalingConfig(num_workers=(min, max))``.
        """
        run = self._active
        if run is None:
            raise InvalidArgument("this Trainer trains nothing now", hint="call scale while fit runs: in on_report, or in another thread")
        if not self._scaling.elastic:
            raise InvalidArgument(
                f"the number of workers is fixed at {self._scaling.maximum}", hint="pass ScalingConfig(num_workers=(minimum, maximum))"
            )
        self._scaling.check_size(num_workers)
        return run.scale(int(num_workers))

    def _run(self, run: Run) -> Result:
        try:
            run.start()
            self._active = run
            try:
                run.serve()
                returns = run.returns()
            finally:
                self._active = None
                run.close()
            return Result(run.history[-1] if run.history else {}, run.history, returns, run.changes, run.failures)
        finally:
            for actor in run.actors():
                with contextlib.suppress(Exception):
                    kill(actor)


def _fitting(nodes: list[dict[str, Any]], resources: dict[str, float], scaling: ScalingConfig) -> int:
    """The number of workers that fit into the cluster now, within the bounds."""
    free = [n["available"] for n in nodes if n["state"] == "ALIVE" and not n["cordoned"]]
    wanted = {name: amount for name, amount in resources.items() if amount > 0}
    fit = sum(min((int(has.get(name, 0) / amount + 1e-9) for name, amount in wanted.items()), default=scaling.maximum) for has in free)
    return max(scaling.minimum, min(fit, scaling.first_target))


def _settings(session_folder: str, use_gpu: bool) -> dict[str, str]:
    """Returns the variables that the ranks get from this process."""
    found = inherited_settings(use_gpu, environment.inherited().get("env_vars", {}))
    network = Path(session_folder, "tls", "network.json")
    if started_by_node() and network.is_file() and json.loads(network.read_text())["interface"] == found.get("SHOAL_INTERFACE"):
        del found["SHOAL_INTERFACE"]
    return found


def _effective(name: str, settings: dict[str, str]) -> str:
    """Returns a variable as the workers have it: ``settings`` win over a ``runtime_env``."""
    return environment.expanded(settings.get(name) or environment.inherited().get("env_vars", {}).get(name, ""))


def _records(settings: dict[str, str]) -> bool:
    word = _effective("SHOAL_RECORD", settings).strip().lower()
    return not word or word in ON  # the workers report a wrong value


def _refuse_ranks() -> None:
    """Raises InvalidArgument in a process that is one of several ranks, because each would start its own training."""
    rank, size = variable("RANK"), variable("WORLD_SIZE", "1")
    if rank and size != "1":
        script = os.path.basename(sys.argv[0]) or "SCRIPT"
        raise InvalidArgument(
            f"this process is rank {rank} of {size} already: each of them would start a Trainer of its own",
            hint=f"call the loop itself here, or start one process: python {script}, shoal submit {script} without --num-workers, or "
            f"shoal run --driver {script}",
        )
