"""A training step that a driver writes by hand, as a graph of futures. ``fully_shard`` traces the same kind of graph.

    step = graph.Step(["up", "down"])
    w_up, w_down = step.unshard("up"), step.unshard("down")     # communication: handles to nodes, nothing has run yet
    x = step.forward("up", after=w_up)                          # compute
    ...
    ranks = graph.place(model, batch, loss, num_workers=2)      # ShardActors, placed together by the head
    ranks.send(step)                                            # the graph, once
    losses = shoal.get(ranks.step())                            # one message per rank

The graph (StepGraph) runs on the ShardActors, arenas and kernels of ``fully_shard``. The driver needs neither ``torch.distributed`` nor a
process group.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _shoal_switch import ON

from shoal import _native
from shoal._actors.creation import create_gang
from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core import telemetry
from shoal._core.budget import bytes_of
from shoal._core.process import session, state
from shoal._core.variables import variable
from shoal._objects.refs import ObjectRef
from shoal._objects.values import get, wait
from shoal._runtime_env import environment
from shoal.exceptions import InvalidArgument
from shoal.fsdp._graph import StepGraph, of_model
from shoal.fsdp._graph_worker import GraphWorker

__all__ = ["AdamW", "Handle", "Ranks", "Step", "place"]


class Handle:
    """A node of a step, as a future of the node's result. ``print`` shows its label."""

    __slots__ = ("_step", "id")

    def __init__(self, step: Step, node: int):
        self._step, self.id = step, node

    def __repr__(self) -> str:
        return f"{self._step._native.label(self.id)} (node {self.id})"


After = Handle | Iterable[Handle | None] | None
Units = str | Iterable[str]


class Step:
    """The nodes of one step in the order in which each lane runs them, and the edges between them.

    There are three lanes, each in order: compute (``forward``, ``loss``, ``recompute``, ``backward``, ``update``), communication
    (``unshard``, ``reduce_scatter``, ``reshard``, ``clip_norm``, ``commit``) and host copies (``fetch``, ``offload``). A node begins
    when its predecessors have ended and its lane is free. A compute node first starts the ready communication written before it: an
    ``unshard`` written before a ``forward`` overlaps with it. ``after``: a handle or several; None among them is ignored.
    ``micro``: the node's micro-batch, from 0 on. ``passes`` derives an optimised step from a plain one.

    Methods raise InvalidArgument for an unknown unit or another step's handle, and TypeError for an object that is no handle. Errors of
    the whole graph (``check``) are raised when it is sent.
    """

    def __init__(self, units: Iterable[str]):
        self.units = list(units)
        if len(set(self.units)) != len(self.units) or not all(isinstance(u, str) and u for u in self.units):
            raise InvalidArgument(f"units have names of their own, not {self.units}")
        self._native = _native.StepGraph(self.units)
        self._ops: list[str] = []  # by node: its op

    # ---- communication ----

    def unshard(self, unit: Units, after: After = None) -> Handle:
        """Takes the lease on one or several units: parameters are unsharded until ``reshard``. Waits for every rank's update of them."""
        return self._add("unshard", unit, {"memory": self._of(after, "reshard"), "order": self._but(after, "reshard")})

    def reshard(self, unit: Units, after: After = None) -> Handle:
        """Returns the lease. ``after``: the last reader."""
        return self._add("reshard", unit, {"order": self._handles(after)})

    def reduce_scatter(self, unit: Units, gradient: After, after: After = None, *, micro: int = 0) -> Handle:
        """Averages a unit's gradients over ranks, along a tree over them; each rank keeps its rows. ``gradient``: the unit's ``backward``.

        Unreduced gradients of earlier micro-batches are included; the result is added to gradients that they reduced.
        """
        return self._add("reduce_scatter", unit, {"data": self._handles(gradient), "order": self._handles(after)}, micro)

    def clip_norm(self, max_norm: float, after: After = None) -> Handle:
        """Scales all gradients so that their norm over units and ranks is at most ``max_norm``, as torch's ``clip_grad_norm_`` does.
        ``after``: the last ``reduce_scatter`` of every unit. ``update`` comes after it."""
        edges = {"data": self._of(after, "reduce_scatter"), "order": self._but(after, "reduce_scatter")}
        return self._add("clip_norm", None, edges, value=float(max_norm))

    def commit(self, after: After = None) -> Handle:
        """Waits until every rank has reduced its gradients and no longer reads the parameters. Rows may be written afterwards."""
        return self._add("commit", None, {"data": self._of(after, "reduce_scatter"), "order": self._but(after, "reduce_scatter")})

    # ---- compute ----

    def forward(self, unit: str, x: Handle | None = None, after: After = None, *, micro: int = 0) -> Handle:
        """Runs a unit's module on another forward's output, or on the batch's inputs (None). ``after``: its ``unshard``."""
        return self._add("forward", unit, self._reading(x, after), micro)

    def loss(self, x: Handle, after: After = None, *, micro: int = 0) -> Handle:
        """Computes the loss of a forward's output and the batch's targets. ``Ranks.step`` returns it, and gradients begin here."""
        return self._add("forward", None, {"data": self._handles(x), "order": self._handles(after)}, micro)

    def recompute(self, unit: str, x: Handle | None = None, after: After = None, *, micro: int = 0) -> Handle:
        """Runs a unit's forward again before its ``backward``, on the same ``x``, so that the first one saves nothing (activation
        checkpointing). It restores the random number state. ``after``: its ``unshard``."""
        return self._add("recompute", unit, self._reading(x, after), micro)

    def backward(self, unit: str, gradient: Handle, after: After = None, *, micro: int = 0) -> Handle:
        """Runs a unit's backward. ``gradient``: the gradient of its output, from the ``loss`` or from the ``backward`` of the unit that
        read it. ``after``: its ``unshard`` and ``recompute``."""
        return self._add("backward", unit, self._reading(gradient, after), micro)

    def update(self, unit: str, after: After = None) -> Handle:
        """Runs AdamW on this rank's rows of a unit. ``after``: the ``commit``, or the unit's last ``reduce_scatter`` if the ``commit``
        follows the update. By then every rank has published its gradients, and no longer reads the unit."""
        return self._add("optimizer_update", unit, {"data": self._of(after, "reduce_scatter"), "order": self._but(after, "reduce_scatter")})

    # ---- host copies ----

    def fetch(self, unit: str, after: After = None) -> Handle:
        """Reads a unit's optimizer state from a file (``place(offload_folder=)``) into memory, before its ``update``.
        An ``offload`` writes it back after that: ``check`` refuses a unit with one of the two."""
        return self._add("fetch", unit, {"memory": self._of(after, "offload"), "order": self._but(after, "offload")})

    def offload(self, unit: str, after: After = None) -> Handle:
        """Writes a unit's optimizer state to the file and frees its memory. ``after``: its ``update``."""
        return self._add("offload", unit, {"data": self._handles(after)})

    # ---- the whole ----

    def check(self) -> None:
        """Raises InvalidArgument (reason ``BadGraph``) for a graph that cannot run; the message names the node and the missing part."""
        self._native.check()

    def encode(self) -> bytes:
        """Serialises the graph (Cap'n Proto, fsdp/wire/step_graph.capnp). Raises as ``check`` does."""
        self.check()
        return self._native.encode()

    def passes(
        self,
        *,
        prefetch: int = 1,
        reshard_after_forward: bool | Mapping[str, bool] | None = None,
        recompute: Iterable[str] = (),
        micro_batches: int = 1,
        reduce_each: bool = False,
        bucket_bytes: int = 0,
        unit_bytes: Mapping[str, int] | None = None,
        max_norm: float | None = None,
        optimizer_in_backward: bool = False,
        offload: Iterable[str] = (),
    ) -> Step:
        """Returns another step, derived by passes. This step does not change, and its handles are invalid in the other.

        ``prefetch``: number of compute nodes between the begin of a unit's unshard and its reader; 0: on demand.
        ``reshard_after_forward``: return the lease between forward and backward, for all units or by name (None: as written).
        ``recompute``: units whose forward saves nothing and runs again before its backward.
        ``micro_batches``: split the batch along dim 0 into this many (torch.chunk). The loss is their mean. Gradients are reduced after
        the last one, or with ``reduce_each`` after each.
        ``bucket_bytes``: adjacent units of fewer bytes (``unit_bytes``: ``Ranks.unit_bytes``) are unsharded and reduced together.
        ``max_norm``: clip gradients by their global norm. ``optimizer_in_backward``: update a unit once it is reduced (not with
        ``max_norm``). ``offload``: units whose optimizer state lies in a file between updates.
        Raises InvalidArgument for a pass that does not fit the graph.
        """
        if bucket_bytes and unit_bytes is None:
            raise InvalidArgument("bucket_bytes needs to know the bytes of each unit", hint="unit_bytes=ranks.unit_bytes")
        if reshard_after_forward is None:
            reshard = []
        elif isinstance(reshard_after_forward, bool):
            reshard = [reshard_after_forward] * len(self.units)
        else:
            reshard = [bool(reshard_after_forward.get(u, True)) for u in self.units]
            self._indices(reshard_after_forward)
        options = {
            "prefetch": prefetch,
            "reshard_after_forward": reshard,
            "recompute": self._indices(recompute),
            "micro_batches": micro_batches,
            "reduce_each": reduce_each,
            "unit_bytes": [unit_bytes[u] for u in self.units] if bucket_bytes else [],
            "bucket_bytes": bucket_bytes,
            "max_norm": 0.0 if max_norm is None else _positive("max_norm", max_norm),
            "optimizer_in_backward": optimizer_in_backward,
            "offload": self._indices(offload),
        }
        step = Step(self.units)
        step._native = self._native.passes(options)
        step._ops = [step._native.op(n) for n in range(len(step._native.graph_nodes()))]
        return step

    def fit(self, memory_budget: int | str, unsharded_bytes: Mapping[str, int], fixed_bytes: int = 0) -> Step:
        """Returns another step whose leases fit a memory budget, with the fewest reshards and then the deepest prefetching that fit.

        ``memory_budget``: bytes, or text such as "4GiB". ``unsharded_bytes``: bytes per unit while it is leased (a lease in
        an arena takes nothing). ``fixed_bytes``: bytes that are always in use.
        Raises ResourceExhausted with the smallest sufficient budget.
        """
        self._indices(unsharded_bytes)
        by_unit = [unsharded_bytes.get(u, 0) for u in self.units]
        fitted = self._native.fit(bytes_of(memory_budget), fixed_bytes, by_unit)
        reshard = dict(zip(self.units, fitted.reshard_after_forward, strict=True))
        return self.passes(prefetch=fitted.prefetch, reshard_after_forward=reshard)

    def graph(self) -> StepGraph:
        """Returns the graph for printing and drawing, without times; ``Ranks.step_graphs`` has times."""
        return of_model(self._native)

    def __str__(self) -> str:
        return str(self.graph())

    def _indices(self, units: Iterable[str]) -> list[int]:
        for unit in units:
            if unit not in self.units:
                raise InvalidArgument(f"there is no unit {unit!r} in this step", hint=f"there are {', '.join(self.units)}")
        return [self.units.index(u) for u in units]

    def _add(self, op: str, unit: Units | None, edges: dict[str, list[Handle]], micro: int = 0, value: float = 0.0) -> Handle:
        units = self._indices([] if unit is None else [unit] if isinstance(unit, str) else list(unit))
        seen: dict[int, str] = {}
        for kind, handles in edges.items():
            for h in handles:
                seen.setdefault(h.id, kind)
        backward = op in ("backward", "recompute", "reduce_scatter") or (op in ("unshard", "reshard") and self._after_loss())
        node = self._native.add(op, units, list(seen.items()), backward, micro, value)
        self._ops.append("loss" if op == "forward" and unit is None else op)
        return Handle(self, node)

    def _reading(self, x: After, after: After) -> dict[str, list[Handle]]:
        """Edges of a compute node: data edges from its input and from the nodes that make its parameters and activations."""
        producers = [h for h in self._handles(after) if self._ops[h.id] in ("unshard", "recompute")]
        return {"data": self._handles(x) + producers, "order": [h for h in self._handles(after) if h not in producers]}

    def _after_loss(self) -> bool:
        return "loss" in self._ops

    def _handles(self, given: After) -> list[Handle]:
        if given is None:
            return []
        handles = [given] if isinstance(given, Handle) else [h for h in given if h is not None] if isinstance(given, Iterable) else [given]
        for h in handles:
            if not isinstance(h, Handle):
                raise TypeError(f"a node comes after handles of this step, not after {type(h).__name__}")
            if h._step is not self:
                raise InvalidArgument(f"{h!r} is a node of another step")
        return handles

    def _of(self, given: After, op: str) -> list[Handle]:
        return [h for h in self._handles(given) if self._ops[h.id] == op]

    def _but(self, given: After, op: str) -> list[Handle]:
        return [h for h in self._handles(given) if self._ops[h.id] != op]


@dataclass(frozen=True)
class AdamW:
    """Options of ``update`` nodes: AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW`` computes it, on float32 rows."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def __post_init__(self):
        for name, value, low, high in (
            ("lr", self.lr, 0, None),
            ("beta1", self.betas[0], 0, 1),
            ("beta2", self.betas[1], 0, 1),
            ("eps", self.eps, 0, None),
            ("weight_decay", self.weight_decay, 0, None),
        ):
            if not (value >= low and (high is None or value < high)):
                raise ValueError(f"{name} = {value} is out of range")


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise InvalidArgument(f"{name} = {value} is not positive")
    return float(value)


class Ranks:
    """The ranks of a placed model. ``shard_actors``: handles of their ShardActors, by rank. ``unit_bytes``: bytes of each unit's whole
    parameters, by name."""

    def __init__(
        self,
        workers: list[ActorHandle],
        unit_bytes: dict[str, int],
        shard_actors: list[ActorHandle],
        optimizer: AdamW,
        offload_folder: str | Path | None,
        run_folder: str,
        gang: str,
    ):
        self.units, self.unit_bytes, self.shard_actors = list(unit_bytes), unit_bytes, shard_actors
        self._workers, self._optimizer, self._sent = workers, optimizer, False
        self._offload_folder = str(offload_folder or "")
        self._record = telemetry.open_telemetry(run_folder, "driver", gang) if run_folder else None
        if self._record is not None:
            weakref.finalize(self, _close_record, self._record)
            _recorded.add(self)
            if _close_records not in state.ending:
                state.ending.append(_close_records)

    def __len__(self) -> int:
        return len(self._workers)

    def send(self, step: Step) -> None:
        """Sends the graph that ``step()`` runs, one message per rank, and waits until every rank has received it.

        A second call raises InvalidArgument, because a new graph would reset the optimizer's moments. Raises as ``Step.check`` does.
        """
        if self._sent:
            raise InvalidArgument("these ranks have a graph already", hint="place a model of its own for another graph")
        if step.units != self.units:
            raise InvalidArgument(f"the step has the units {', '.join(step.units)}, the model {', '.join(self.units)}", reason="BadGraph")
        encoded, a = step.encode(), self._optimizer
        beta1, beta2 = a.betas
        options = {"lr": a.lr, "beta1": beta1, "beta2": beta2, "eps": a.eps, "weight_decay": a.weight_decay}
        get([w.send.remote(encoded, options, self._offload_folder) for w in self._workers])
        self._sent = True

    def step(self) -> list[ObjectRef]:
        """Runs one step on every rank, by one message per rank. Returns references to the losses by rank: floats, of the rank's own batch,
        before the update. Steps run in call order; the caller need not wait in between.

        ``shoal.get`` of a loss raises the error of the rank's code, or ActorDiedError if the rank, or one that it waited for, died. A
        failed step makes the model unusable: later steps fail with the same cause.
        """
        self._require_graph()
        return [w.step.remote() for w in self._workers]

    def step_graphs(self) -> list[StepGraph]:
        """The graphs by rank, with planned and measured times of the last step, in microseconds since its begin on that rank."""
        self._require_graph()
        return get([w.step_graph.remote() for w in self._workers])

    def allocated_bytes(self) -> list[int]:
        """Bytes by rank of gradients and optimizer state, which the engine allocates once, when it receives the graph."""
        self._require_graph()
        return get([w.rows_bytes.remote() for w in self._workers])

    def to_perfetto(self, path: str | Path) -> None:
        """Writes the last step of all ranks as Trace Event JSON (https://ui.perfetto.dev). Planned and measured times are separate
        processes."""
        events = [e for g in self.step_graphs() for e in g.events]
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def norms(self) -> list[float]:
        """The norm of all gradients of the last step, before ``clip_norm`` scaled them; a list by rank, of equal numbers."""
        self._require_graph()
        return get([w.norm.remote() for w in self._workers])

    def frames(self) -> list[tuple[int, int]]:
        """(sent, received) by rank: the frames on all connections of the rank's process so far. This call adds one of each."""
        return get([w.frames.remote() for w in self._workers])

    def close(self) -> None:
        """Ends the ranks and releases their resources. The driver's end does the same."""
        try:
            self._close_records()
        finally:  # also if Ctrl-C ends the wait in ``_close_records``
            for w in self._workers:
                kill(w)

    def _close_records(self) -> None:
        """Lets the ranks complete their records before they are killed. The record of a rank that does not answer stays incomplete."""
        if self._record is None:
            return
        with contextlib.suppress(Exception):
            calls = [w.close_record.remote() for w in self._workers]
            wait(calls, num_returns=len(calls), timeout=_CLOSE_S)
        _close_record(self._record)
        self._record = None

    def _require_graph(self) -> None:
        if not self._sent:
            raise InvalidArgument("these ranks have no step to run", hint="send(step) first")


_CLOSE_S = 2.0
_recorded: weakref.WeakSet[Ranks] = weakref.WeakSet()  # placed models whose steps are recorded in a run's folder


def _close_records() -> None:
    for ranks in [*_recorded]:
        ranks._close_records()


def _close_record(record: _native.Telemetry) -> None:
    telemetry.close(telemetry.uncaught(), record)


def _recording(gang: str) -> tuple[dict[str, str], str]:
    """Returns the variables by which ranks record their steps, unless a ``runtime_env`` sets them, and the run's folder; "" if nothing is
    recorded."""
    given = environment.inherited().get("env_vars", {})
    own = {name: value for name in ("SHOAL_RECORD", "SHOAL_RUN_FOLDER") if name not in given and (value := variable(name))}
    around = {**given, **own}
    word = around.get("SHOAL_RECORD", "").strip().lower()
    folder = environment.expanded(around.get("SHOAL_RUN_FOLDER", "")) if not word or word in ON else ""
    return {**own, "SHOAL_RUN_FIT": gang}, folder


def place(
    model: Callable[[], Mapping[str, Any]],
    batch: Callable[[int, int], tuple],
    loss: Callable,
    *,
    num_workers: int,
    optimizer: AdamW | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    lease_guard: bool = False,
    offload_folder: str | Path | None = None,
) -> Ranks:
    """Places a model on ``num_workers`` workers, together or not at all, each with a ShardActor that owns its rows of every parameter.

    ``model``: called once per worker; returns the units in order, name -> ``torch.nn.Module`` from one tensor to one tensor. It must create
    the same values on every rank (seed it), because each rank keeps its own rows. ``batch(rank, step)``: returns the rank's (inputs,
    targets), in the worker. ``loss(output, targets)``: a scalar tensor; gradients are averaged over ranks. All three are sent with
    cloudpickle. ``resources_per_worker``: default one (logical) CPU. ``lease_guard``: a read of parameters outside a lease ends the rank
    and names the unit. ``offload_folder``: a folder on disk, where steps with ``offload`` keep optimizer state in an unnamed file that ends
    with the rank.

    Waits until all workers have joined. Raises ResourceExhausted if no present node could ever hold a worker, and errors of a worker's
    ``model``. Raises InvalidArgument for an embedding with ``max_norm``. A step raises it for any other forward that writes to parameters;
    writes to ``p.data`` are not detected.
    """
    if not isinstance(num_workers, int) or num_workers < 1:
        raise InvalidArgument(f"num_workers is a number from 1 on, not {num_workers!r}")
    for name, function in (("model", model), ("batch", batch), ("loss", loss)):
        if not callable(function):
            raise TypeError(f"{name} is a function, not {type(function).__name__}")
    s, gang = session(), f"graph-{secrets.token_hex(4)}"
    settings, run_folder = _recording(gang)
    resources = {"CPU": 1.0, **(resources_per_worker or {})}
    workers = create_gang(
        GraphWorker,
        num_workers,
        (model, batch, loss, lease_guard),
        resources=resources,
        torch=True,
        refuse_infeasible=True,
        env=settings,
    )
    try:
        joined = get([w.join.remote(gang, rank, num_workers) for rank, w in enumerate(workers)])
    except BaseException:
        for w in workers:
            kill(w)
        raise
    unit_bytes, members = joined[0]
    handles = []
    for member in members:
        s.know(member, "ShardActor")
        handles.append(ActorHandle(member, "ShardActor", {"describe": {}}))
    return Ranks(workers, unit_bytes, handles, optimizer or AdamW(), offload_folder, run_folder, gang)
