"""A graph to compile: its nodes, checked and split into the actors' parts."""

from __future__ import annotations

from shoal._actors.handle import ActorHandle, sharing
from shoal.dag import _schedule
from shoal.dag._channels import Layout
from shoal.dag._loop import Argument, Part, PlannedCall
from shoal.dag._nodes import ClassMethodNode, DAGNode, FunctionNode, InputAttributeNode, InputNode, MultiOutputNode, nodes_in, replaced
from shoal.exceptions import Unimplemented

__all__ = ["WHOLE", "Graph"]

WHOLE: _schedule.InputKey = ("input", None)


class Graph:
    """The nodes of a graph as calls and values of a schedule."""

    def __init__(self, output: DAGNode):
        nodes = output._graph()
        chosen = list(output._args) if isinstance(output, MultiOutputNode) else [output]
        _check_kinds(nodes, output, chosen)
        self._methods = [n for n in nodes if isinstance(n, ClassMethodNode)]
        self._values: dict[DAGNode, _schedule.Value] = {n: k for k, n in enumerate(self._methods)}
        self._values |= {n: ("input", n._key) for n in nodes if isinstance(n, InputAttributeNode)}
        self._values |= {n: WHOLE for n in nodes if isinstance(n, InputNode)}
        self.actors: dict[str, ActorHandle] = {}
        self.calls: list[_schedule.Call] = []
        for node in self._methods:
            actor = node._method._actor
            if actor.id not in self.actors:
                self.actors[actor.id] = sharing(actor)
            reads = tuple(dict.fromkeys(self._values[n] for n in nodes_in((node._args, node._kwargs))))
            if not reads:
                raise ValueError(f"{node!r} takes neither the input nor another node: nothing would start it")
            self.calls.append(_schedule.Call(actor.id, f"{node!r} (actor {actor.id})", reads))
        keys = {v[1] for call in self.calls for v in call.reads if type(v) is tuple}
        if None in keys and len(keys) > 1:
            raise ValueError("All tasks must either use InputNode() directly, or they must index to specific args or kwargs.")
        self.positions = 1 if None in keys else max((k + 1 for k in keys if isinstance(k, int)), default=0)
        self.keywords = sorted(k for k in keys if isinstance(k, str))
        outputs = [self._values[n] for n in chosen]
        self.plan = _schedule.plan(self.calls, outputs)
        self.picks = [list(self.plan.outputs).index(v) for v in outputs]

    def part(self, actor: str, layout: Layout, in_flight: int, place: tuple[str, str], driver: str) -> Part:
        steps, slots = self.plan.steps[actor], {}

        def slot(value: _schedule.Value) -> int:
            return slots.setdefault(value, len(slots))

        def placed(given):
            return replaced(given, lambda n: Argument(slot(self._values[n])))

        calls = []
        for step in steps:
            node, call = self._methods[step.call], self.calls[step.call]
            args, kwargs = placed(node._args), placed(node._kwargs)
            needs, reads = tuple(slot(v) for v in call.reads), tuple((slot(v), c) for v, c in step.reads)
            calls.append(PlannedCall(node._method._name, args, kwargs, needs, reads, slot(step.call), tuple(step.writes)))
        return Part(layout, in_flight, place, driver, tuple(calls), len(slots))

    def text(self) -> str:
        def name(value: _schedule.Value) -> str:
            return f"{value}" if type(value) is int else "input" if value == WHOLE else f"input[{value[1]!r}]"

        lines = []
        for actor, steps in self.plan.steps.items():
            lines.append(f"{self.actors[actor]!r}")
            for step in steps:
                reads = ", ".join(name(v) for v in self.calls[step.call].reads)
                lines.append(f"  {step.call} = {self._methods[step.call]._method._name}({reads})")
        return "\n".join([*lines, f"output: {', '.join(name(v) for v in self.plan.outputs)}"])


def _check_kinds(nodes: list[DAGNode], output: DAGNode, chosen: list[DAGNode]) -> None:
    """Raises ValueError, or Unimplemented, for nodes that only uncompiled graphs may have."""
    if any(isinstance(n, FunctionNode) for n in nodes):
        raise Unimplemented("a compiled graph takes methods of actors only: a function has no process that waits for its next call")
    if sum(isinstance(n, InputNode) for n in nodes) != 1:
        raise ValueError("a compiled graph has exactly one InputNode")
    if any(isinstance(n, MultiOutputNode) and n is not output for n in nodes):
        raise ValueError("a MultiOutputNode is the last node of a graph")
    if not all(isinstance(n, ClassMethodNode) for n in chosen):
        raise ValueError("the outputs of a compiled graph are results of methods, not its input")
    inside = set(nodes)
    for node in nodes:
        left_out = [d for ref in node._downstream if isinstance(d := ref(), ClassMethodNode) and d not in inside]
        if left_out and isinstance(node, ClassMethodNode):
            raise ValueError(f"{left_out[0]!r} is bound to {node!r}, but no output of this graph: put it into a MultiOutputNode")
