"""The step graph for inspection: nodes, memory, timeline, SVG and Perfetto output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.exceptions import InvalidArgument
from shoal.fsdp._devices.timeline import Timeline
from shoal.fsdp._draw import draw

LANES = ("compute", "communication", "host copy", "gather", "reduce", "copies")
TRANSFERS = LANES[3:]  # on devices
# Short names of ops in a timeline; others appear in full.
_SHORT = {
    "unshard": "AG",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_reduce": "AR",
    "reshard": "free",
    "optimizer_update": "update",
    "clip_norm": "clip",
}


@dataclass(frozen=True)
class Node:
    """One node: ``label`` such as ``unshard(blocks.0)``, its lane, the ids of its predecessors, and its times.

    ``planned`` and ``measured`` are (start, end) in microseconds since the step began, or None. ``op``: the operation; ``units``: names of
    its units, the root's as "root", empty for all units; ``micro``: the micro-batch. Transfers of devices are measured nodes without
    predecessors, on lanes of their own.
    """

    id: int
    label: str
    lane: str
    after: tuple[int, ...]
    planned: tuple[float, float] | None
    measured: tuple[float, float] | None
    op: str = ""
    units: tuple[str, ...] = ()
    micro: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory that the engine holds on this host for a model, in bytes, over all of its ranks.

    ``arenas``: whole parameters, and shards that are not in place; ``slots``: gradients being reduced; ``control``: shared control words.
    These three lie in the node's shared memory.
    ``gradients``: gradients of each rank's own rows.
    ``optimizer``: optimizer state of a hand-written step, of ``step_graph(optimizer=)``, or of the optimizer in backward; None: unknown,
    and not summed.
    ``outside``: per rank, parameters outside the arenas, on devices or gathered by collectives; ``ranks``: the number of ranks.
    ``activations``: per rank, the peak of a forward and a backward without parameters (saved tensors, unpublished gradients,
    temporaries); None: unknown, and not summed.
    """

    arenas: int
    slots: int
    control: int
    gradients: int
    optimizer: int | None = None
    activations: int | None = None
    outside: int = 0
    ranks: int = 1

    @property
    def node_bytes(self) -> int:
        """Bytes of shared memory that the node accounts for."""
        return self.arenas + self.slots + self.control

    @property
    def total(self) -> int:
        return self.node_bytes + self.gradients + (self.optimizer or 0) + (self.outside + (self.activations or 0)) * self.ranks

    def __str__(self) -> str:
        rows = {
            "parameters (arenas)": self.arenas,
            "gradients on their way (slots)": self.slots,
            "control words": self.control,
            "own gradients": self.gradients,
        }
        if self.optimizer is not None:
            rows["optimizer state"] = self.optimizer
        if self.outside:
            rows["parameters in no arena"] = self.outside * self.ranks
        lines = [f"{name:32}{value / 2**20:12.2f} MiB" for name, value in rows.items()]
        if self.optimizer is None:
            lines.append("optimizer state is missing: it is known with step_graph(..., optimizer=)")
        if self.activations is None:
            lines.append("activations are missing: they are the module's, and known with example_inputs=")
        else:
            lines.append(f"{f'activations of {self.ranks} ranks':32}{self.activations * self.ranks / 2**20:12.2f} MiB")
        return "\n".join([*lines, f"{'together':32}{self.total / 2**20:12.2f} MiB"])


class StepGraph:
    """One training step of one rank as nodes and edges, with planned and measured times. ``print`` shows a timeline in execution order;
    ``draw`` writes an SVG, ``to_perfetto`` a trace."""

    def __init__(self, nodes: list[Node], table: str, perfetto: str, memory: Memory | None = None):
        self.nodes, self.memory = nodes, memory
        self._table, self._perfetto = table, perfetto

    def __str__(self) -> str:
        return timeline(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def table(self) -> str:
        """One line per node: id, lane, planned and measured times, and its predecessors (``~``: by order, ``^``: by memory)."""
        return self._table

    def find(self, label: str) -> list[Node]:
        """The nodes with this label, in order. A unit is unsharded for forward and again for backward."""
        return [n for n in self.nodes if n.label == label]

    def peak_bytes(self) -> int:
        """The peak memory of this step in bytes, on this host, for all ranks; ``print(graph.memory)`` shows the parts.

        Exact before the first step runs. It includes activations only with ``step_graph(example_inputs=)``, and the state of an optimizer
        outside the engine only with ``step_graph(optimizer=)``. With both it is all memory that the job takes for the model, except for
        malloc's fragmentation.
        Raises InvalidArgument for a hand-written graph that was not sent to its ranks.
        """
        if self.memory is None:
            message = "this graph is of no model yet: bytes are known when it is sent"
            raise InvalidArgument(message, hint="ranks.step_graphs()[0].peak_bytes()")
        return self.memory.total

    def to_perfetto(self, path: str | Path) -> None:
        """Writes Trace Event JSON for https://ui.perfetto.dev or chrome://tracing. Planned and measured times are two processes."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(self._perfetto)

    def draw(self, path: str | Path) -> None:
        """Writes an SVG of the lanes over time, measured above planned, without scripts. A graph without times is drawn in its order, with
        nodes of equal length. Raises InvalidArgument for a path that does not end in .svg."""
        if Path(path).suffix.lower() != ".svg":
            raise InvalidArgument(f"{path} is no .svg file: draw writes SVG only", hint=f'draw("{Path(path).with_suffix(".svg")}")')
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(draw(self.nodes, LANES))

    @property
    def events(self) -> list[dict]:
        return json.loads(self._perfetto)["traceEvents"]


def timeline(nodes: list[Node]) -> str:
    """Returns a text with a column per lane and a line per node, in order of measured times, or of planned ones, or as written if there are
    no times."""
    kind = next((k for k in ("measured", "planned") if any(getattr(n, k) for n in nodes)), None)
    times = {n.id: getattr(n, kind) for n in nodes if kind and getattr(n, kind)}
    shown = sorted((n for n in nodes if n.id in times), key=lambda n: times[n.id][0]) if kind else nodes
    lanes = [lane for lane in LANES if any(n.lane == lane for n in nodes)]
    text = {n.id: _words(n) for n in nodes}
    width = {lane: max([len(lane), *(len(text[n.id]) for n in nodes if n.lane == lane)]) for lane in lanes}
    head = f"{len(nodes)} nodes"
    if kind:
        head += f", {max(end for _, end in times.values()) / 1000:.3f} ms {kind}"
    lines = [head, f"{'at us':>9} {'took':>8}  " + "  ".join(f"{lane:{width[lane]}}" for lane in lanes)]
    for n in shown:
        at = f"{times[n.id][0]:9.0f} {times[n.id][1] - times[n.id][0]:8.0f}" if kind else f"{'':18}"
        cells = "  ".join(f"{text[n.id] if lane == n.lane else '':{width[lane]}}" for lane in lanes)
        lines.append(f"{at}  {cells}".rstrip())
    return "\n".join(lines)


def _words(n: Node) -> str:
    what = "+".join(n.units) or ("loss" if n.op == "forward" else "")
    part = n.label[n.label.index("#") : n.label.index(")")] if "#" in n.label else ""
    return f"{_SHORT.get(n.op, n.op)} {what}{part}".rstrip() + (f" [{n.micro}]" if n.micro else "")


def of_model(
    model, memory: dict[str, int] | Memory | None = None, timelines: Sequence[Timeline] = (), number: int | None = None
) -> StepGraph:
    """Converts a native model that has a plan, or a native graph. ``timelines``: those of its devices, of which it takes the transfers of
    the ``Root`` with this ``number``."""
    planned, measured = model.graph_planned(), model.graph_measured()
    nodes = [
        Node(
            id=i,
            label=n.label,
            lane=n.lane,
            after=tuple(n.after),
            planned=planned[i] if planned else None,
            measured=measured[i] if measured else None,
            op=n.op,
            units=tuple(n.units),
            micro=n.micro,
        )
        for i, n in enumerate(model.graph_nodes())
    ]
    perfetto = model.graph_perfetto()
    transfers = _transfers(timelines, len(nodes), *model.measured_between(), number) if timelines and measured else []
    if transfers:
        nodes += transfers
        perfetto = _with_transfers(perfetto, transfers)
    return StepGraph(nodes, model.graph_table(), perfetto, Memory(**memory) if isinstance(memory, dict) else memory)


def _transfers(timelines: Sequence[Timeline], first: int, begin: float, end: float, model: int | None) -> list[Node]:
    found = [t for timeline in timelines for t in timeline.between(begin, end, model)]
    return [
        Node(first + i, f"{t.op}({t.unit})", t.lane, (), None, ((a - begin) * 1e6, (b - begin) * 1e6), t.op, (t.unit,))
        for i, (t, a, b) in enumerate(found)
    ]


def _with_transfers(perfetto: str, transfers: Sequence[Node]) -> str:
    """Adds the transfers to the trace, in the process with the measured times: the one with the highest pid."""
    trace = json.loads(perfetto)
    events = trace["traceEvents"]
    process = max((e["pid"] for e in events), default=0)
    threads = {lane: LANES.index(lane) for lane in TRANSFERS if any(n.lane == lane for n in transfers)}
    events += [{"ph": "M", "pid": process, "tid": t, "name": "thread_name", "args": {"name": lane}} for lane, t in threads.items()]
    for n in transfers:
        start, stop = n.measured or (0.0, 0.0)
        event = {"ph": "X", "pid": process, "tid": threads[n.lane], "name": n.label, "cat": n.op, "ts": start, "dur": stop - start}
        events.append(event | {"args": {"node": n.id}})
    return json.dumps(trace)
