"""The driver's side of ``shoal.ray.run``: it places the actors, waits for them, and finds the first cause of a failure."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shoal import exceptions
from shoal._core.serialize import Snapshot, loads
from shoal._core.variables import variable
from shoal.exceptions import (
    ActorDiedError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RuntimeEnvSetupError,
    ShoalError,
    TaskError,
    Unimplemented,
)
from shoal.train import Result, ScalingConfig
from shoal.train._launch.settings import inherited_settings
from shoal.train._ranks import Place, environments

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_HINT_OF_READING = "install the packages of its classes in the driver, too, or return and report plain values"
_NOTICE_S = 2.0  # maximum wait for the cause of an error that only reports another rank's
_NOTICE_FROM_NODES_S = 30.0  # the same for several nodes: Ray counts a node as dead after five missed checks, one every 3 s


def run(
    loop: Callable,
    config: Any = None,
    *,
    num_workers: int = 1,
    resources_per_worker: dict[str, float] | None = None,
    use_gpu: bool = False,
    placement_strategy: str = "PACK",
    placement_timeout: float = 300.0,
    on_report: Callable[[dict[str, Any]], None] | None = None,
) -> Result:
    """Runs ``loop(config)`` on ``num_workers`` ranks, each in an actor of Ray, and returns their results.

    The ranks are placed together, by a placement group of the strategy ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``. Each has
    one CPU by default, with ``use_gpu`` a GPU, too, and what ``resources_per_worker`` names. Their environment has torchrun's variables,
    and a process group is initialised as in the loop of a :class:`shoal.train.Trainer`, so one loop runs under both. Ranks of one Ray node
    have consecutive numbers. Without a connection to Ray, this calls ``ray.init()``, which joins the cluster of ``RAY_ADDRESS`` or of this
    host, or else starts one that ends with this process. The packages of Ray's nodes have to include Shoal and torch.

    ``on_report``: called in this process with rank 0's metrics at each ``shoal.train.report``. The number of ranks is fixed.

    Raises the error of the first failing rank (as its own class and as TaskError), or ActorDiedError if a rank's process died. Raises
    ResourceExhausted if Ray does not place the ranks within ``placement_timeout`` seconds, DeadlineExceeded if their processes have not
    started by then, and NotFound without Ray. In each case, and at this process's end, the actors and the placement group end.
    """
    scaling = _checked(loop, num_workers, resources_per_worker, use_gpu, placement_strategy)
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init()
    limit = _Limit(placement_timeout)
    with (
        _placed(ray, scaling, placement_strategy, limit) as group,
        _actors(ray, scaling, group, limit) as ranks,
        _reports(ray, on_report) as reports,
    ):
        given = ray.put((loop, config))
        variables = environments([r.place for r in ranks])
        runs = [r.actor.run.remote(given, v, use_gpu, reports.actor) for r, v in zip(ranks, variables, strict=True)]
        outcomes = _outcomes(ray, ranks, runs, reports)
    history = [_read(metrics, f"rank 0 of {len(ranks)}: its report") for metrics in outcomes[0].history]
    returns = [_read(outcome.value, f"rank {n} of {len(ranks)}: its result") for n, outcome in enumerate(outcomes)]
    return Result(history[-1] if history else {}, history, returns)


class _Limit:
    """The time for the placement of the ranks and the start of their processes, from now on."""

    def __init__(self, seconds: float):
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


@dataclass(frozen=True)
class _Rank:
    actor: Any
    place: Place


def _import_ray() -> Any:
    try:
        import ray  # late: an optional package
    except ImportError as error:
        raise NotFound(f"shoal.ray.run needs Ray, which cannot be imported here: {error}", hint='pip install "ray"') from None
    return ray


def _checked(loop: Callable, num_workers: int, resources: dict[str, float] | None, use_gpu: bool, strategy: str) -> ScalingConfig:
    if not callable(loop):
        raise TypeError(f"the loop is a function, not {type(loop).__name__}")
    if variable("RANK") and variable("WORLD_SIZE", "1") != "1":
        raise InvalidArgument(
            f"this process is rank {variable('RANK')} of {variable('WORLD_SIZE')} already: each of them would start ranks of its own",
            hint="call the loop itself here, or shoal.ray.run in one process",
        )
    if isinstance(num_workers, (tuple, list)):
        raise Unimplemented(
            f"shoal.ray.run has a fixed number of ranks, not num_workers={num_workers!r}",
            hint="an elastic training needs a cluster of Shoal: shoal.train.Trainer, by shoal run --min --max (docs/launch.md)",
        )
    if strategy not in STRATEGIES:
        raise InvalidArgument(f"placement_strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    scaling = ScalingConfig(num_workers, resources, use_gpu)
    if not _bundle(scaling):
        raise InvalidArgument(
            f"resources_per_worker={resources!r} leaves a rank without any resource, so that Ray cannot place it",
            hint='leave it out for one CPU per rank, or name a share of one: resources_per_worker={"CPU": 0.01}',
        )
    return scaling


# ---- the group, the actors and the reports in Ray, each with its end ----


@contextlib.contextmanager
def _placed(ray: Any, scaling: ScalingConfig, strategy: str, limit: _Limit) -> Iterator[Any]:
    """Reserves the resources of all ranks."""
    from ray.util import placement_group, remove_placement_group

    bundle = _bundle(scaling)
    group = placement_group([bundle] * scaling.maximum, strategy=strategy, name="shoal.ray.run")
    try:
        if not group.wait(limit.left()):
            raise _not_placed(ray, scaling.maximum, bundle, strategy, limit.seconds)
        yield group
    finally:
        with contextlib.suppress(Exception):
            remove_placement_group(group)


def _bundle(scaling: ScalingConfig) -> dict[str, float]:
    """The resources that a rank's bundle reserves."""
    return {name: amount for name, amount in scaling.resources.items() if amount > 0}


def _not_placed(ray: Any, count: int, bundle: dict[str, float], strategy: str, timeout: float) -> ResourceExhausted:
    total, free = ray.cluster_resources(), ray.available_resources()
    has = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in bundle)
    each = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
    nodes = sum(node["Alive"] for node in ray.nodes())
    return ResourceExhausted(
        f"Ray has not placed {count} ranks with {each} each ({strategy}) within {timeout:g} s: free on its {nodes} nodes are {has}",
        hint="ask for less with num_workers= or resources_per_worker=, add nodes to Ray's cluster, or wait longer with placement_timeout=",
    )


@contextlib.contextmanager
def _actors(ray: Any, scaling: ScalingConfig, group: Any, limit: _Limit) -> Iterator[list[_Rank]]:
    """Makes an actor in each bundle. Yields them by rank: those of one node have consecutive ranks."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from shoal.ray._rank import ShoalRank  # late: it imports ray

    of_the_job = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    settings = inherited_settings(scaling.use_gpu, of_the_job)  # without the job's variables, which Ray itself gives the ranks
    actors: list[Any] = []
    try:
        for index in range(scaling.maximum):
            options = _options(scaling.resources)
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            if settings:
                options["runtime_env"] = {"env_vars": settings}
            actors.append(ray.remote(ShoalRank).options(**options).remote())
        placements = [actor.place.remote(scaling.use_gpu) for actor in actors]
        places = [_place(ray, ref, f"rank {n} of {len(placements)}", limit) for n, ref in enumerate(placements)]
        nodes = list(dict.fromkeys(place.node for place in places))
        found = [_Rank(actor, place) for actor, place in zip(actors, places, strict=True)]
        yield sorted(found, key=lambda rank: (nodes.index(rank.place.node), rank.place.device))
    finally:
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)


def _place(ray: Any, ref: Any, who: str, limit: _Limit) -> Place:
    """Waits for the start of a rank's process."""
    started, _ = ray.wait([ref], timeout=limit.left())
    if not started:
        raise DeadlineExceeded(
            f"{who} has its resources, but its process has not started within {limit.seconds:g} s",
            hint="its runtime_env may take long: see the logs of Ray's workers, or wait longer with placement_timeout=",
        )
    return _value(ray, ref, who, None)


def _options(resources: dict[str, float]) -> dict[str, Any]:
    """The resources of a worker, as an actor's options name them."""
    rest = dict(resources)
    named = {"num_cpus": rest.pop("CPU", 0), "num_gpus": rest.pop("GPU", 0)}
    if "memory" in rest:
        named["memory"] = rest.pop("memory")
    return {**named, "resources": {name: amount for name, amount in rest.items() if amount > 0}, "max_restarts": 0, "max_task_retries": 0}


@contextlib.contextmanager
def _reports(ray: Any, on_report: Callable[[dict[str, Any]], None] | None) -> Iterator[_Reports]:
    """Makes the actor through which reports come, on this process's node and outside of the placement group; none without on_report."""
    if on_report is None:
        yield _Reports(ray, None, None)
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from shoal.ray._rank import ShoalReports  # late: it imports ray

    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(ShoalReports).options(num_cpus=0, scheduling_strategy=this_node).remote()
    try:
        yield _Reports(ray, actor, on_report)
    finally:
        with contextlib.suppress(Exception):
            ray.kill(actor)


class _Reports:
    """Rank 0's reports on their way to ``on_report``."""

    def __init__(self, ray: Any, actor: Any, on_report: Callable[[dict[str, Any]], None] | None):
        self._ray, self.actor, self._on_report = ray, actor, on_report
        self._taken = 0
        self.awaited = [] if actor is None else [actor.next.remote()]

    def take(self) -> None:
        metrics = _value(self._ray, self.awaited.pop(), "the actor that passes on reports", None)
        self.awaited.append(self.actor.next.remote())
        self._give(metrics)

    def take_rest(self, history: list[Snapshot]) -> None:
        """Takes the reports that had not come when rank 0's loop returned."""
        for metrics in history[self._taken :] if self._on_report is not None else ():
            self._give(metrics)

    def _give(self, metrics: Snapshot) -> None:
        self._taken += 1
        self._on_report(_read(metrics, "rank 0: its report"))


# ---- the outcome ----


@dataclass(frozen=True, order=True)
class _Failure:
    """Ordered: the first cause is the least one."""

    consequence: bool  # it only reports that another rank failed
    failed_at: float
    rank: int
    error: BaseException = field(compare=False)


def _outcomes(ray: Any, ranks: list[_Rank], runs: list[Any], reports: _Reports) -> list[Any]:
    """Waits until all loops have returned. Raises the first cause if one fails. An error may only report that another rank has failed,
    and the error or death of that rank may arrive later. So after such an error this waits some seconds for the cause."""
    pending, ended, failures, until = {run: n for n, run in enumerate(runs)}, {}, [], None
    notice = _NOTICE_S if len({r.place.node for r in ranks}) == 1 else _NOTICE_FROM_NODES_S
    while pending and all(f.consequence for f in failures):
        left = None if until is None else max(0.0, until - time.monotonic())
        ready, _ = ray.wait([*pending, *reports.awaited], num_returns=1, timeout=left)
        if not ready:
            break
        if ready[0] not in pending:
            reports.take()
            continue
        rank = pending.pop(ready[0])
        try:
            ended[rank] = outcome = _value(ray, ready[0], f"rank {rank} of {len(runs)}", ranks[rank].place)
        except ShoalError as error:
            failures.append(_Failure(False, time.time(), rank, error))
            continue
        if outcome.error is not None:
            failures.append(_Failure(outcome.consequence, outcome.failed_at, rank, outcome.error.as_instance_of_cause()))
            until = until or time.monotonic() + notice
    if failures:
        raise min(failures).error
    reports.take_rest(ended[0].history)
    return [ended[rank] for rank in range(len(runs))]


def _value(ray: Any, ref: Any, who: str, place: Place | None) -> Any:
    """Returns the value of a reference. Raises Ray's errors as ours, with the rank's name."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        raise _as_ours(ray, error, who, place) from None


def _as_ours(ray: Any, error: Any, who: str, place: Place | None) -> ShoalError:
    text = str(error)
    if "No module named 'shoal'" in text:
        return NotFound(f"{who} did not start: its node of Ray has no Shoal", hint="install the same packages on all nodes of Ray")
    if isinstance(error, ray.exceptions.RuntimeEnvSetupError):
        return RuntimeEnvSetupError(f"{who} did not start: Ray could not make its environment: {text}")
    if isinstance(error, ray.exceptions.RayTaskError):
        return TaskError(error.cause, error.traceback_str, who).as_instance_of_cause()
    if isinstance(error, ray.exceptions.RaySystemError):
        return exceptions.RaySystemError(f"{who}: its result cannot be read in the driver: {text}", hint=_HINT_OF_READING)
    deaths = ("RayActorError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError")
    if not isinstance(error, tuple(getattr(ray.exceptions, name) for name in deaths)):
        return _of_the_same_name(error)(f"{who}: {text}")
    who = who if place is None else f"{who}, process {place.process.pid} on {place.host},"
    return ActorDiedError(f"{who} died, and the other ranks have ended with it. Ray's reason: {_reason(text)}")


def _of_the_same_name(error: Any) -> type[ShoalError]:
    """Returns Shoal's class with the name of the error's class, or else with that of its closest base that Shoal has."""
    names = (cls.__name__ for cls in type(error).__mro__)
    return next(cls for name in names if isinstance(cls := getattr(exceptions, name, None), type) and issubclass(cls, ShoalError))


def _read(snapshot: Snapshot, what: str) -> Any:
    """Returns the value of a rank. Raises InvalidArgument if its classes cannot be loaded here."""
    try:
        return loads(*snapshot)
    except Exception as error:
        text = f"{what} cannot be read in the driver: {type(error).__name__}: {error}"
        raise InvalidArgument(text, hint=_HINT_OF_READING) from error


def _reason(text: str) -> str:
    """Ray's reason for the death of an actor, without its guesses."""
    found = re.search(r"(?:Worker exit detail|is dead because|died because)[: ]*([^\n]+)", text)
    reason = found[1] if found else text.strip().partition("\n")[0]
    if detail := re.search(r"Worker exit detail: (.+)", reason):
        reason = detail[1]
    return reason.partition(" Some common causes")[0]
