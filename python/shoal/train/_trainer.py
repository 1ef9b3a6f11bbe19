"""The driver's side of a training run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal._actors.creation import create_gang
from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core import serialize
from shoal._core.process import session, state
from shoal._objects.refs import ObjectRef, load
from shoal._runtime_env import environment
from shoal.exceptions import ActorDiedError, InvalidArgument, ResourceExhausted, TaskError, Unimplemented
from shoal.train._ranks import environments
from shoal.train._worker import TrainWorker

_SETTINGS = ("SHOAL_FSDP", "SHOAL_LEASE_GUARD", "SHOAL_TIMEOUT", "SHOAL_TRANSPORT")  # environment variables passed to the ranks
_NEWS_S = 2.0  # maximum wait for the cause of an ActorDiedError


@dataclass(frozen=True)
class ScalingConfig:
    """The number of workers and the resources of each: by default one (logical) CPU."""

    num_workers: int = 1
    resources_per_worker: dict[str, float] | None = None
    use_gpu: bool = False

    def __post_init__(self):
        if isinstance(self.num_workers, str) or not hasattr(self.num_workers, "__index__") or self.num_workers < 1:
            raise InvalidArgument(f"num_workers is a number from 1 on, not {self.num_workers!r}")
        object.__setattr__(self, "num_workers", int(self.num_workers))
        if self.use_gpu:
            raise Unimplemented("use_gpu=True is not in this release", hint="train on CPUs, or ask for custom resources")


@dataclass(frozen=True)
class Result:
    """The result of a training run. ``metrics``: rank 0's last report; ``metrics_history``: all its reports in order; ``returns``: results
    of the loops, by rank."""

    metrics: dict[str, Any] = field(default_factory=dict)
    metrics_history: list[dict[str, Any]] = field(default_factory=list)
    returns: list[Any] = field(default_factory=list)


class Trainer:
    """Runs ``train_loop_per_worker`` on ``scaling_config.num_workers`` workers, placed together or not at all.

    The loop gets ``train_loop_config`` if given. Its environment has torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
    GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Local ranks count within a node, nodes are numbered in the order of their first
    ranks, and rank 0 listens at MASTER_ADDR. A gloo process group is initialised, so that ``shoal.fsdp.fully_shard`` works at once.
    Workers inherit this process's ``SHOAL_FSDP``, ``SHOAL_LEASE_GUARD``, ``SHOAL_TIMEOUT`` and ``SHOAL_TRANSPORT``, unless a
    ``runtime_env`` sets them.
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

    def fit(self) -> Result:
        """Runs the loop to its end. Ctrl-C ends the workers.

        Raises the error of the first failing worker (as its own class and as TaskError), or ActorDiedError if a worker died. Raises
        ResourceExhausted if no present node could ever hold a worker, and InvalidArgument in a process that is one of several ranks.
        """
        _refuse_ranks()
        count = self._scaling.num_workers
        resources = {"CPU": 1.0, **(self._scaling.resources_per_worker or {})}
        s = session()
        try:
            given = environment.inherited().get("env_vars", {})
            settings = {name: os.environ[name] for name in _SETTINGS if name in os.environ and name not in given}
            workers = create_gang(TrainWorker, count, resources=resources, torch=True, refuse_infeasible=True, env=settings)
        except ResourceExhausted as error:
            if state.cluster is not None:  # a private cluster, which no further node will join
                error.hint = (
                    f"CPUs are logical: begin with shoal.init(num_cpus={count * resources['CPU']:g}), or ask for less with "
                    "ScalingConfig(resources_per_worker=...)"
                )
            raise
        return self._run(s, workers)

    def _run(self, s, workers: list[ActorHandle]) -> Result:
        actors = [*workers]
        try:
            asked = [w.place.remote() for w in workers]
            s.wait_all([place._ref for place in asked])
            given = environments([load(place, f"rank {rank} of {len(asked)}") for rank, place in enumerate(asked)])
            queue = s.host_queue("TrainReports")
            driver = ActorHandle(queue, "TrainReports", {"report": {}})
            actors.append(driver)  # ended after the workers, because their reports go to it
            runs = [w.run.remote(self._loop, self._config, env, driver) for w, env in zip(workers, given, strict=True)]
            try:
                history = self._serve(s, queue, runs)
            finally:
                s.close_queue(queue)
            return Result(history[-1] if history else {}, history, [load(r) for r in runs])
        finally:
            for actor in actors:
                with contextlib.suppress(Exception):
                    kill(actor)

    def _serve(self, s, queue: str, runs: list[ObjectRef]) -> list[dict[str, Any]]:
        """Answers each report after every rank has made it, until all loops have returned. Returns rank 0's metrics."""
        history: list[dict[str, Any]] = []
        waiting: dict[int, list] = {}  # by number of the report: calls whose answer waits for other ranks
        refs, seen = [r._ref for r in runs], 0
        tally = s.tally(refs)
        while True:
            incoming = s.next_report(queue, tally, seen)
            seen = sum(r.ready for r in refs)
            if any(r._ref.ready and r._ref.failed for r in runs):
                raise self._first_cause(s, runs)
            if incoming is None:
                if seen == len(refs):
                    return history
                self._check_waiting(s, waiting, runs)
                continue
            (rank, number, metrics), _ = serialize.loads(*incoming.args)
            calls = waiting.setdefault(number, [])
            calls.append((rank, incoming))
            if rank == 0:
                history.append(metrics)
                if self._on_report is not None:
                    self._on_report(metrics)
            if len(calls) == len(runs):
                for _, call in waiting.pop(number):
                    s.reply(call, *serialize.dumps(None))
            self._check_waiting(s, waiting, runs)

    @staticmethod
    def _first_cause(s, runs: list[ObjectRef]) -> BaseException:
        """Returns the original error among those of failed ranks. An ActorDiedError may only report that another rank has died, whose own
        error arrives later. So this waits up to ``_NEWS_S`` seconds for another error."""
        until = time.monotonic() + _NEWS_S
        while True:
            errors = [e for e in (_failure(r, f"rank {rank} of {len(runs)}") for rank, r in enumerate(runs)) if e is not None]
            own = [e for e in errors if not (isinstance(e, TaskError) and isinstance(e.cause, ActorDiedError))]
            left = until - time.monotonic()
            running = [r._ref for r in runs if not r._ref.ready]
            if own or left <= 0 or not running:
                return (own or errors)[0]
            s.wait_some(running, 1, left)

    @staticmethod
    def _check_waiting(s, waiting: dict[int, list], runs: list[ObjectRef]) -> None:
        """Fails reports that wait for a rank whose loop has ended."""
        done = [rank for rank, r in enumerate(runs) if r._ref.ready]
        for number, calls in list(waiting.items()):
            missing = [rank for rank in done if all(rank != r for r, _ in calls)]
            if missing:
                error = InvalidArgument(
                    f"rank {missing[0]} ended its loop without report number {number}", hint="report equally often on every rank"
                )
                for _, call in waiting.pop(number):
                    s.reply(call, *serialize.dump_exception(error, "report"), raised=True)


def _failure(run: ObjectRef, where: str) -> BaseException | None:
    if not (run._ref.ready and run._ref.failed):
        return None
    try:
        load(run, where)
    except BaseException as error:
        return error
    return None


def _refuse_ranks() -> None:
    """Raises InvalidArgument in a process that is one of several ranks, because each would start its own training."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if rank is not None and size != "1":
        script = os.path.basename(sys.argv[0]) or "SCRIPT"
        raise InvalidArgument(
            f"this process is rank {rank} of {size} already: each of them would start a Trainer of its own",
            hint=f"call the loop itself here, or start one process: python {script}, or shoal submit {script} without --num-workers",
        )
