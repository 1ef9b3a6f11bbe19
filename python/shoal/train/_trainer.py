"""The driver's side of a training run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._actors.creation import create_gang
from shoal._actors.registry import kill
from shoal._core.process import session, started_by_node, state
from shoal._core.variables import variable
from shoal._objects.refs import ObjectRef
from shoal._runtime_env import environment
from shoal.exceptions import InvalidArgument, ResourceExhausted, Unimplemented
from shoal.train._changes import Change
from shoal.train._membership import Membership
from shoal.train._run import Run, Setup
from shoal.train._worker import TrainWorker

# Environment variables passed to the ranks.
_MOST_LOGICAL_RANKS = 64  # as shoal.fsdp._parameters.logical.MAXIMUM, which needs torch
_SETTINGS = ("SHOAL_FSDP", "SHOAL_INTERFACE", "SHOAL_LEASE_GUARD", "SHOAL_TIMEOUT", "SHOAL_TRANSPORT", "SHOAL_DEVICE_TRANSPORT")


@dataclass(frozen=True)
class ScalingConfig:
    """The number of workers and the resources of each: by default one (logical) CPU.

    ``num_workers=(minimum, maximum)``: an elastic training. It begins with as many workers as fit, and takes more, up to the maximum, when
    nodes or resources become free. It goes on with fewer when a node drains. The loop uses :func:`shoal.train.steps`, or is a step that
    :func:`shoal.train.run` calls. ``initial_workers``: the training has at most this number of workers, instead of the maximum, until
    ``scale`` changes it.
    ``protect``: an elastic training survives the deaths of workers without the loss of a step. The optimizer has to be ``shoal.optim``'s
    Adam, AdamW or SGD. Its states and the gradients are then in memory of the nodes. With workers on several nodes, each worker's part of
    the model also has a replica on another node, so that the training survives the loss of a node. ``"host"``: without replicas.
    ``deterministic``: losses and parameters have the same bits with any number of workers, through changes and deaths. The bits depend on
    the number of ``logical_ranks``: a power of two up to 64, by default the smallest that is not below the maximum of workers. Each worker
    plays some of these ranks. See docs/training.md for what else stays the same.
    ``use_gpu``: each worker also gets a GPU as its only CUDA device, or the share of one that ``resources_per_worker={"GPU": 0.5}`` states.
    An elastic training runs on CPUs.
    """

    num_workers: int | tuple[int, int] = 1
    resources_per_worker: dict[str, float] | None = None
    use_gpu: bool = False
    protect: bool | str = True
    deterministic: bool = False
    logical_ranks: int | None = None
    initial_workers: int | None = None

    def __post_init__(self):
        if self.protect not in (True, False, "host"):
            raise InvalidArgument(f'protect is True, False or "host", not {self.protect!r}')
        given = self.num_workers
        bounds = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
        if len(bounds) != 2 or not all(hasattr(n, "__index__") and n >= 1 for n in bounds) or bounds[0] > bounds[1]:
            raise InvalidArgument(f"num_workers is a number from 1 on, or (minimum, maximum) of such numbers, not {given!r}")
        minimum, maximum = (int(n) for n in bounds)
        object.__setattr__(self, "num_workers", (minimum, maximum) if isinstance(given, (tuple, list)) else minimum)
        self._choose_logical_ranks(maximum)
        self._check_initial_workers(minimum, maximum)
        gpus = (self.resources_per_worker or {}).get("GPU")
        if self.use_gpu and gpus is not None and not 0 < gpus <= 1:
            raise InvalidArgument(f"a worker trains on one device, not on {gpus:g}", hint="use more workers; below 1 they share devices")
        if self.use_gpu and self.elastic:
            raise Unimplemented(
                "an elastic training with use_gpu=True is not in this release: only parameters in a CPU's memory move to another mesh",
                hint="pass one number as num_workers, or train on CPUs",
            )

    def _check_initial_workers(self, minimum: int, maximum: int) -> None:
        initial = self.initial_workers
        if initial is not None and not (self.elastic and hasattr(initial, "__index__") and minimum <= initial <= maximum):
            raise InvalidArgument(
                f"initial_workers={initial!r} is no number within num_workers={self.num_workers!r}",
                hint="pass num_workers=(minimum, maximum), and a number from the minimum to the maximum",
            )

    def _choose_logical_ranks(self, maximum: int) -> None:
        given = self.logical_ranks
        if not self.deterministic:
            if given is not None:
                raise InvalidArgument("logical_ranks without deterministic=True has no effect", hint="pass both, or neither")
            return
        if self.use_gpu:
            raise Unimplemented("deterministic=True with use_gpu=True is not in this release: devices reduce in an order of their own")
        chosen = 1 << (maximum - 1).bit_length() if given is None else given
        if not hasattr(chosen, "__index__") or not 1 <= chosen <= _MOST_LOGICAL_RANKS or chosen & (chosen - 1):
            raise InvalidArgument(f"logical_ranks is a power of two from 1 to {_MOST_LOGICAL_RANKS}, not {chosen!r}")
        if maximum > chosen:
            raise InvalidArgument(
                f"up to {maximum} workers cannot divide {chosen} logical ranks", hint="each worker plays one or more: raise logical_ranks"
            )
        object.__setattr__(self, "logical_ranks", int(chosen))

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a worker."""
        return {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **(self.resources_per_worker or {})}

    @property
    def elastic(self) -> bool:
        return isinstance(self.num_workers, tuple)

    @property
    def minimum(self) -> int:
        return self.num_workers[0] if self.elastic else self.num_workers

    @property
    def maximum(self) -> int:
        return self.num_workers[1] if self.elastic else self.num_workers

    @property
    def first_target(self) -> int:
        """The number of workers that a training aims at before ``scale``."""
        return self.maximum if self.initial_workers is None else self.initial_workers

    def check_size(self, num_workers: int) -> None:
        """Raises InvalidArgument unless the number is within the bounds."""
        if not hasattr(num_workers, "__index__") or not self.minimum <= num_workers <= self.maximum:
            raise InvalidArgument(f"{num_workers!r} is no number of workers from {self.minimum} to {self.maximum}")


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
    Workers inherit this process's ``SHOAL_FSDP``, ``SHOAL_INTERFACE``, ``SHOAL_LEASE_GUARD``, ``SHOAL_TIMEOUT``, ``SHOAL_TRANSPORT`` and
    ``SHOAL_DEVICE_TRANSPORT``, unless a ``runtime_env`` sets them. An interface that this process has got from its node is valid on this
    host only, and is not inherited.
    ``on_report``: called in the driver with rank 0's metrics at each report.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable,
        *,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        on_report: Callable[[dict[str, Any]], None] | None = None,
    ):
        if not callable(train_loop_per_worker):
            raise TypeError("train_loop_per_worker is a function")
        self._loop, self._config = train_loop_per_worker, train_loop_config
        self._scaling = scaling_config or ScalingConfig()
        self._on_report = on_report
        self._active: Run | None = None

    def fit(self) -> Result:
        """Runs the loop to its end. Ctrl-C ends the workers.

        Raises the error of the first failing worker (as its own class and as TaskError), or ActorDiedError if a worker died. Raises
        ResourceExhausted if no present node could ever hold a worker, and InvalidArgument in a process that is one of several ranks.
        """
        _refuse_ranks()
        scaling = self._scaling
        resources = scaling.resources
        s = session()
        count = _fitting(s.list("nodes"), resources, scaling) if scaling.elastic else scaling.maximum
        settings = _settings(s.folder)
        try:
            workers = create_gang(TrainWorker, count, resources=resources, torch=True, refuse_infeasible=True, env=settings)
        except ResourceExhausted as error:
            if self._scaling.use_gpu and "GPU" in str(error):
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
        protected = scaling.elastic and bool(scaling.protect)
        setup = Setup(
            self._loop,
            self._config,
            self._on_report,
            resources,
            settings,
            scaling.elastic,
            protected=protected,
            replicated=protected and scaling.protect != "host",
            use_gpu=scaling.use_gpu,
            logical_ranks=scaling.logical_ranks or 0,
            threads=max(1, int(resources["CPU"])),
        )
        membership = Membership(scaling.minimum, scaling.maximum, tuple(range(count)), scaling.first_target, protected=protected)
        return self._run(Run(s, setup, membership, workers))

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
            history = run.outcome.history
            return Result(history[-1] if history else {}, history, returns, run.outcome.changes, run.outcome.failures)
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


def _settings(session_folder: str) -> dict[str, str]:
    """Returns the variables that the ranks get from this process."""
    given = environment.inherited().get("env_vars", {})
    found = {name: os.environ[name] for name in _SETTINGS if name in os.environ and name not in given}
    network = Path(session_folder, "tls", "network.json")
    if started_by_node() and network.is_file() and json.loads(network.read_text())["interface"] == found.get("SHOAL_INTERFACE"):
        del found["SHOAL_INTERFACE"]
    return found


def _refuse_ranks() -> None:
    """Raises InvalidArgument in a process that is one of several ranks, because each would start its own training."""
    rank, size = variable("RANK"), variable("WORLD_SIZE", "1")
    if rank and size != "1":
        script = os.path.basename(sys.argv[0]) or "SCRIPT"
        raise InvalidArgument(
            f"this process is rank {rank} of {size} already: each of them would start a Trainer of its own",
            hint=f"call the loop itself here, or start one process: python {script}, or shoal submit {script} without --num-workers",
        )
