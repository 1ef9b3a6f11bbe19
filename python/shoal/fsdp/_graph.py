"""The step graph, as people look at it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """One node: ``label`` such as ``unshard(blocks.0)``, its lane, the ids it comes after, and when it was planned and seen.

    ``planned`` and ``measured`` are (start, end) in microseconds since the step began, or None.
    """

    id: int
    label: str
    lane: str
    after: tuple[int, ...]
    planned: tuple[float, float] | None
    measured: tuple[float, float] | None


class StepGraph:
    """One training step of one rank as nodes and edges, with planned and measured times. ``print`` it, or open it in Perfetto."""

    def __init__(self, nodes: list[Node], table: str, perfetto: str):
        self.nodes = nodes
        self._table, self._perfetto = table, perfetto

    def __str__(self) -> str:
        return self._table

    def __len__(self) -> int:
        return len(self.nodes)

    def find(self, label: str) -> list[Node]:
        """The nodes with this label, in order: a unit is unsharded for forward and again for backward."""
        return [n for n in self.nodes if n.label == label]

    def to_perfetto(self, path: str | Path) -> None:
        """Writes Trace Event JSON: open it at https://ui.perfetto.dev or in chrome://tracing. Planned and measured are two processes."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(self._perfetto)

    @property
    def events(self) -> list[dict]:
        return json.loads(self._perfetto)["traceEvents"]


def of_model(model) -> StepGraph:
    """The graph of a native model that has a plan."""
    planned, measured = model.graph_planned(), model.graph_measured()
    nodes = [
        Node(i, label, lane, tuple(after), planned[i] if planned else None, measured[i] if measured else None)
        for i, (label, lane, after) in enumerate(model.graph_nodes())
    ]
    return StepGraph(nodes, model.graph_table(), model.graph_perfetto())
