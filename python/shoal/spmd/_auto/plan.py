"""Automatic sharding: specs for the parameters and inputs of a module, chosen by the costs of a training step.

Forward and backward of the module are recorded once, without memory. For a choice of specs the engine's own rules give the layouts of each
operator's tensors and the communication. The price of a choice is the time of all operators and the peak memory per device. The search
starts at the usual strategies (whole weights, FSDP, split layers). It changes one decision, or those of two consecutive weights, as long as
that helps. Parameters of repeated blocks share a decision. The search is deterministic and measures nothing: equal modules, inputs and
options give equal specs on every process.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from shoal._core.budget import bytes_of
from shoal.exceptions import InvalidArgument
from shoal.spmd._auto.costs import Collective, Machine, Price, Prices, local_bytes
from shoal.spmd._auto.trace import GRADIENT, MARK, Trace, Untraceable, input_name, record
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout import devices
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.errors import MarkError
from shoal.spmd._layout.mesh import Mesh, get_global_mesh
from shoal.spmd._layout.sharding import Sharding, Spec
from shoal.spmd._marks.marking import mark_freely, mark_sharding

Axes = tuple[int, ...]
Choice = tuple[int, ...]  # a candidate's index, per decision
_ROUNDS = 8  # rounds of the search; each changes every decision at most once


@dataclass
class Decision:
    """Parameters that share a spec, or inputs that share their batch. ``candidates``: per candidate the axes of each dimension (of the
    first dimension for inputs)."""

    name: str
    members: list[str]
    values: list[int]
    shape: tuple[int, ...]
    candidates: list[tuple[Axes, ...]]
    is_input: bool = False

    def sharding(self, mesh: Mesh, candidate: int, rank: int) -> Sharding:
        axes = self.candidates[candidate]
        return Sharding.of(mesh, [*axes, *[()] * (rank - len(axes))])


@dataclass(frozen=True)
class Row:
    """One decision of a plan. ``device_bytes``: on each device, with gradient and optimizer state. ``collectives``: bytes that a device
    receives per step for these tensors, by collective. ``reason``: the cost of the next best spec."""

    name: str
    members: tuple[str, ...]
    shape: tuple[int, ...]
    spec: Spec
    device_bytes: float
    collectives: dict[str, float]
    reason: str


@dataclass
class ShardingPlan:
    """The choice of ``auto_shard``. ``str(plan)`` is a table with reasons. ``specs`` and ``input_specs`` are by name. ``seconds`` of a step
    and ``peak_bytes`` per device come from the cost model; ``whole_seconds`` and ``whole_bytes`` are the same without splits.
    ``activations``: bytes that a device receives per step for other tensors than parameters, gradients and inputs, by collective."""

    mesh: Mesh
    rows: list[Row]
    seconds: float
    peak_bytes: float
    whole_seconds: float
    whole_bytes: float
    memory_budget: int | None
    activations: dict[str, float]
    specs: dict[str, Spec] = field(default_factory=dict)
    input_specs: dict[str, Spec] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [("tensors", "", "shape", "spec", "per device", "received per step", "why")]
        for r in self.rows:
            many = f"x{len(r.members)}" if len(r.members) > 1 else ""
            lines.append((r.name, many, _shape(r.shape), _spec_text(r.spec), _size(r.device_bytes), _received(r.collectives), r.reason))
        lines.append(("activations", "", "", "", "", _received(self.activations), ""))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        labels = [f"axis {i}" if self.mesh.axis_names is None else self.mesh.axis_names[i] for i in range(len(self.mesh.mesh_shape))]
        axes = " x ".join(f"{n} ({label})" for n, label in zip(self.mesh.mesh_shape, labels, strict=True))
        budget = "" if self.memory_budget is None else f" of {_size(self.memory_budget)}"
        return "\n".join(
            [
                f"Automatic sharding over {self.mesh.size()} devices, mesh {axes}",
                *table,
                f"A step takes about {_time(self.seconds)} and {_size(self.peak_bytes)}{budget} per device; "
                f"with these whole {_time(self.whole_seconds)} and {_size(self.whole_bytes)}.",
            ]
        )

    def apply(self, module: nn.Module) -> None:
        """Moves the module to the device and marks its parameters. Marks the inputs of later calls, and shards gradients like their
        parameters."""
        module.to(DEVICE)
        for name, p in module.named_parameters():
            if name in self.specs:
                mark_sharding(p, self.mesh, self.specs[name])
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(_lay_gradient)
        module.register_forward_pre_hook(lambda _, args, kwargs: self.mark_inputs(args, kwargs), with_kwargs=True)

    def mark_inputs(self, args: tuple, kwargs: dict) -> None:
        """Marks unmarked device tensors with the spec of the input at their place."""
        for i, t in enumerate(tree_flatten((args, kwargs))[0]):
            if isinstance(t, Tensor) and t._box.mark is None:
                spec = self.input_specs.get(input_name(args, kwargs, i))
                if spec is not None and len(spec) == t.dim():
                    mark_sharding(t, self.mesh, spec)


def _lay_gradient(p: torch.Tensor) -> None:
    if isinstance(p, Tensor) and isinstance(p.grad, Tensor):
        mark_freely(p.grad, p._box.array.sharding)


def auto_shard(
    module: nn.Module,
    example_inputs: Any = (),
    mesh: Mesh | None = None,
    memory_budget: int | str | None = None,
    *,
    optimizer_states: int = 2,
    machine: Machine | None = None,
    apply: bool = True,
    quiet: bool = False,
) -> ShardingPlan:
    """Chooses and marks specs for the unmarked parameters and inputs of ``module``, and prints the table with its reasons on stderr.

    ``example_inputs``: a tensor, a tuple of positional arguments, or a dict of keyword arguments, of the sizes of a training step. Module
    and inputs may lie on the host, the device, or (with ``apply=False``) on "meta". Only sizes matter; forward runs once without values.
    ``mesh``: default the global mesh, else XLA_AUTO_SPMD_MESH (sizes such as ``4,2``), else the best of all meshes of one and two axes.
    ``memory_budget``: bytes per device, or text such as "4GiB"; None: unlimited. It covers parameters, gradients, activations and
    ``optimizer_states`` tensors per trainable parameter (2 for Adam). ``machine``: speeds, see Machine. A module in eval mode is planned
    for forward passes only.

    Raises MarkError when SPMD is off, and InvalidArgument for a module whose forward reads values. It also raises InvalidArgument for a
    budget that no choice keeps, and names the smallest possible one."""
    if apply and not devices.is_spmd():
        raise MarkError("SPMD is off", hint="call shoal.spmd.runtime.use_spmd() at the program's begin, or pass apply=False")
    args, kwargs = _arguments(example_inputs)
    plan = _planned(module, args, kwargs, mesh, memory_budget, optimizer_states, machine or Machine())
    if not quiet:
        _print(plan)
    if apply:
        plan.apply(module)
        plan.mark_inputs(args, kwargs)
    return plan


def _print(plan: ShardingPlan) -> None:
    if devices.process_index() == 0:
        print(plan, file=sys.stderr)


def _planned(
    module: nn.Module,
    args: tuple,
    kwargs: dict,
    mesh: Mesh | None,
    memory_budget: int | str | None,
    optimizer_states: int,
    machine: Machine,
) -> ShardingPlan:
    budget = None if memory_budget is None else bytes_of(memory_budget)
    training = module.training and any(p.requires_grad for p in module.parameters())
    with _Choosing():
        trace = record(module, args, kwargs, training)
    meshes = [mesh] if mesh is not None else _meshes()
    found: tuple[_Problem, Choice] | None = None
    least = math.inf
    for m in meshes:
        problem = _Problem(trace, m, machine, optimizer_states, module)
        chosen = problem.search(math.inf if budget is None else budget, found)
        least = min(least, problem.price(chosen)[1])
        if budget is not None and problem.price(chosen)[1] > budget:
            continue
        if found is None or problem.price(chosen)[0] < 0.97 * found[0].price(found[1])[0]:  # prefers fewer axes unless more help
            found = problem, chosen
    if found is None:
        raise InvalidArgument(
            f"memory_budget of {_size(budget)} per device cannot be kept by {type(module).__name__} on {meshes[0].size()} devices: "
            f"the smallest that can is {math.ceil(least)} bytes ({_size(least)})",
            hint="raise the budget, use more devices, a smaller batch, or checkpoint_module on the blocks",
        )
    return found[0].plan(found[1], budget)


def _arguments(example: Any) -> tuple[tuple, dict]:
    if isinstance(example, dict):
        return (), example
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def _meshes() -> list[Mesh]:
    """The program's mesh, or all meshes of two axes: (n, 1) first."""
    if get_global_mesh() is not None:
        return [get_global_mesh()]
    n = devices.global_runtime_device_count()
    text = os.environ.get("XLA_AUTO_SPMD_MESH", "")
    if text:
        sizes = tuple(int(s) for s in text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else ()
        if math.prod(sizes) != n or not sizes:
            raise InvalidArgument(f"XLA_AUTO_SPMD_MESH is {text!r}", hint=f"give sizes whose product is {n}, such as {n},1")
        return [Mesh(range(n), sizes)]
    return [Mesh(range(n), (n // k, k), ("data", "model")) for k in range(1, math.isqrt(n) + 1) if n % k == 0]


class _Problem:
    """The decisions for one mesh, and the price of each choice."""

    def __init__(self, trace: Trace, mesh: Mesh, machine: Machine, optimizer_states: int, module: nn.Module):
        self.trace, self.mesh, self.machine, self.states = trace, mesh, machine, optimizer_states
        self.prices = Prices(trace, mesh.size(), machine)
        self.decisions = _decisions(trace, mesh, module)
        self._cache: dict[Choice, tuple[float, float]] = {}
        whole = [self.prices.number(v.sharding or Sharding.replicated(len(v.shape), mesh.size())) for v in trace.values]
        self._begin = whole
        self._numbers = [
            [[self.prices.number(d.sharding(mesh, c, len(trace.values[v].shape))) for v in d.values] for c in range(len(d.candidates))]
            for d in self.decisions
        ]
        self._steps = self._prepared()

    def _prepared(self) -> list[tuple]:
        """Returns, per operator: the operator, its prices by layouts of the inputs, and the memory that it frees. Views share memory."""
        trace = self.trace
        root = list(range(len(trace.values)))
        made = set()
        for op in trace.ops:
            for o in op.outputs:
                if o >= 0 and o not in op.inputs:
                    made.add(o)
                    if op.kind >= 0 and trace.kinds[op.kind].is_view:
                        root[o] = root[op.inputs[0]]
        kept = {op.outputs[0] for op in trace.ops if op.kind == GRADIENT}
        last: dict[int, int] = {}
        for i, op in enumerate(trace.ops):
            for v in (*op.inputs, *op.outputs):
                if v >= 0:
                    last[root[v]] = i
        ends: list[list[int]] = [[] for _ in trace.ops]
        for v, i in last.items():
            if v in made and v not in kept:
                ends[i].append(v)
        shared: dict[Any, dict[tuple[int, ...], Price]] = {}
        steps = []
        for op, ending in zip(trace.ops, ends, strict=True):
            of = trace.values[op.inputs[0]] if op.inputs else None
            key = op.kind if op.kind >= 0 else (op.kind, of.shape, of.dtype, op.sharding)
            outputs = [(o, root[o], o not in op.inputs) for o in op.outputs]
            steps.append((op, op.inputs, outputs, tuple(ending), shared.setdefault(key, {}), op.kind == GRADIENT))
        return steps

    def _lying(self, choice: Choice) -> list[int]:
        state = list(self._begin)
        for d, numbers, c in zip(self.decisions, self._numbers, choice, strict=True):
            for v, s in zip(d.values, numbers[c], strict=True):
                state[v] = s
        return state

    def price(self, choice: Choice) -> tuple[float, float]:
        """Returns seconds of a step, and peak bytes per device."""
        found = self._cache.get(choice)
        if found is None:
            found = self._cache[choice] = self._priced(choice)
        return found

    def _priced(self, choice: Choice, visit: Callable[[Any, Price], None] | None = None) -> tuple[float, float]:
        state = self._lying(choice)
        bytes_of = self.prices.bytes
        seconds = live = 0.0
        for v in self.trace.parameters.values():
            size = bytes_of(v, state[v])
            live += size
            if v in self.trace.trainable:  # the optimizer reads and writes parameter and states, and reads the gradient
                live += self.states * size
                seconds += (3 + 2 * self.states) * size / self.machine.memory_bandwidth
        live += sum(bytes_of(v, state[v]) for v in self.trace.inputs.values())
        peak = live
        held = [0.0] * len(state)
        for op, inputs, outputs, ends, memo, is_gradient in self._steps:
            key = tuple([state[i] for i in inputs])
            p = memo.get(key)
            if p is None:
                p = memo[key] = self.prices.price(op, key)
            seconds += p.seconds
            if is_gradient and not p.collectives and p.outputs[0] == key[0]:
                for v in ends:  # the gradient keeps the same memory
                    live -= held[v]
                    held[v] = 0.0
            for (o, r, fresh), s, size in zip(outputs, p.outputs, p.made, strict=False):
                if o >= 0:
                    state[o] = s
                    if fresh and size:
                        held[r] += size
                        live += size
            if live + p.extra > peak:
                peak = live + p.extra
            for v in ends:
                live -= held[v]
                held[v] = 0.0
            if visit is not None:
                visit(op, p)
        return seconds, peak

    def whole(self) -> Choice:
        return (0,) * len(self.decisions)

    # ---- search ----

    def search(self, budget: float, other: tuple[_Problem, Choice] | None) -> Choice:
        """Returns the fastest choice within the budget, or the smallest one found. ``other``: a choice of another mesh."""

        def within(c: Choice) -> tuple[float, float, float]:
            seconds, peak = self.price(c)
            return max(0.0, peak - budget), seconds, peak

        starts = sorted(set(self._starts()) | ({self._adopted(*other)} if other else set()), key=lambda c: (within(c), c))
        best = min((self._descend(c, within, pairs=False) for c in starts[:3]), key=lambda c: (within(c), c))
        best = self._descend(best, within, pairs=True)
        if within(best)[0] > 0:
            smallest = self._descend(best, lambda c: self.price(c)[::-1], pairs=False)
            best = self._descend(smallest, within, pairs=True)
        return best

    def _descend(self, choice: Choice, key: Callable[[Choice], tuple], pairs: bool) -> Choice:
        best = key(choice)
        for _ in range(_ROUNDS):
            before = choice
            for moves in itertools.chain(self._single(), self._double() if pairs else ()):
                tried = min((_with(choice, move) for move in moves), key=lambda c: (key(c), c))
                if key(tried) < best:
                    choice, best = tried, key(tried)
            if choice == before:
                break
        return choice

    def _single(self) -> Iterator[list[list[tuple[int, int]]]]:
        for i, d in enumerate(self.decisions):
            if len(d.candidates) > 1:
                yield [[(i, c)] for c in range(len(d.candidates))]

    def _double(self) -> Iterator[list[list[tuple[int, int]]]]:
        """Pairs of consecutive matrices over the same axes, so that one's result is split as the other needs it."""
        matrices = [i for i, d in enumerate(self.decisions) if not d.is_input and len(d.shape) > 1 and len(d.candidates) > 1]
        for at, i in enumerate(matrices):
            for j in matrices[at + 1 : at + 3]:
                yield [
                    [(i, a), (j, b)]
                    for (a, x), (b, y) in itertools.product(
                        enumerate(self.decisions[i].candidates), enumerate(self.decisions[j].candidates)
                    )
                    if sorted(sum(x, ())) == sorted(sum(y, ())) and len(sum(x, ())) > 0
                ] or [[(i, 0)]]

    def _starts(self) -> Iterator[Choice]:
        """Yields the usual strategies, over every set of axes. Weights are whole, split along their largest dimension (FSDP), or
        alternately by columns and rows, as consecutive layers are. The batch is whole or split."""
        axes = [i for i, n in enumerate(self.mesh.mesh_shape) if n > 1]
        sets = [s for r in range(1, len(axes) + 1) for s in itertools.combinations(axes, r)]
        for batch in [(), *sets]:
            yield self._strategy(batch, lambda d, turn: ())
            for weights in sets:

                def largest(d: Decision, turn: int, over: Axes = weights) -> tuple[Axes, ...]:
                    at = max(range(len(d.shape)), key=lambda i: d.shape[i])
                    return tuple(over if i == at else () for i in range(len(d.shape)))

                def in_turn(d: Decision, turn: int, over: Axes = weights) -> tuple[Axes, ...]:
                    return tuple(over if i == turn % 2 and len(d.shape) > 1 else () for i in range(len(d.shape)))

                yield self._strategy(batch, largest)
                yield self._strategy(batch, in_turn)
                yield self._strategy(batch, lambda d, turn, f=in_turn: f(d, turn + 1))

    def _strategy(self, batch: Axes, weights: Callable[[Decision, int], tuple[Axes, ...]]) -> Choice:
        chosen, turn = [], 0
        for d in self.decisions:
            wanted = (batch,) if d.is_input else weights(d, turn) if d.shape else ()
            turn += not d.is_input and len(d.shape) > 1
            chosen.append(d.candidates.index(wanted) if wanted in d.candidates else 0)
        return tuple(chosen)

    def _adopted(self, other: _Problem, choice: Choice) -> Choice:
        """Returns the choice with equal layouts on this mesh, as far as possible."""
        chosen = []
        for d, o, c in zip(self.decisions, other.decisions, choice, strict=True):
            rank = len(d.shape)
            wanted = o.sharding(other.mesh, c, rank)
            same = [k for k in range(len(d.candidates)) if d.sharding(self.mesh, k, rank) == wanted]
            chosen.append(same[0] if same else 0)
        return tuple(chosen)

    # ---- the result ----

    def plan(self, choice: Choice, budget: int | None) -> ShardingPlan:
        seconds, peak = self.price(choice)
        owned = self._collectives(choice)
        rows = []
        specs: dict[str, Spec] = {}
        input_specs: dict[str, Spec] = {}
        for i, (d, c) in enumerate(zip(self.decisions, choice, strict=True)):
            names = {v: n for n, v in (self.trace.inputs if d.is_input else self.trace.parameters).items()}
            size = 0.0
            received: Counter[str] = Counter()
            for v in d.values:
                rank = len(self.trace.values[v].shape)
                copies = 1 if d.is_input else 1 + (1 + self.states) * (v in self.trace.trainable)
                size += copies * local_bytes(self.trace.values[v], d.sharding(self.mesh, c, rank))
                received.update(owned.get(v, {}))
                spec = self._spec(d.candidates[c], rank)
                (input_specs if d.is_input else specs)[names[v]] = spec
            spec = self._spec(d.candidates[c], len(d.shape))
            rows.append(Row(d.name, tuple(d.members), d.shape, spec, size, dict(received), self._reason(choice, i, budget)))
        whole = self.price(self.whole())
        activations = dict(owned.get(-1, {}))
        return ShardingPlan(self.mesh, rows, seconds, peak, whole[0], whole[1], budget, activations, specs, input_specs)

    def _spec(self, axes: tuple[Axes, ...], rank: int) -> Spec:
        entries = [*axes, *[()] * (rank - len(axes))]
        label = self.mesh.axis_label
        return tuple(None if not a else label(a[0]) if len(a) == 1 else tuple(map(label, a)) for a in entries)

    def _reason(self, choice: Choice, i: int, budget: int | None) -> str:
        d = self.decisions[i]
        if len(d.candidates) == 1:
            return "there is one device" if self.mesh.size() == 1 else "too small to split"
        seconds, _ = self.price(choice)
        others = []
        for c in range(len(d.candidates)):
            if c != choice[i]:
                cost, peak = self.price(_with(choice, [(i, c)]))
                others.append((budget is not None and peak > budget, cost - seconds, peak, self._spec(d.candidates[c], len(d.shape))))
        over, more, peak, spec = min(others, key=lambda o: o[:3])
        text = _spec_text(spec)
        if over:
            return f"{text} would need {_size(peak)}"
        return f"{text} takes {_time(more)} more" if more > 0 else f"{text} takes as long"

    def _collectives(self, choice: Choice) -> dict[int, Counter[str]]:
        """Bytes received per collective, by the parameter or input that causes them; -1: activations."""
        trace = self.trace
        origin = {v: v for v in (*trace.parameters.values(), *trace.inputs.values())}
        feeds: dict[int, int] = {}
        for op in trace.ops:
            if op.kind == MARK or (op.kind >= 0 and trace.kinds[op.kind].is_view):
                origin.update({o: origin[op.inputs[0]] for o in op.outputs if op.inputs[0] in origin})
        for op in reversed(trace.ops):
            if op.kind == GRADIENT:
                feeds[op.inputs[0]] = op.inputs[1]
            elif op.kind >= 0 and trace.kinds[op.kind].is_view:
                fed = [feeds[o] for o in op.outputs if o in feeds]
                feeds.update(dict.fromkeys(op.inputs[:1], fed[0]) if fed else {})
        owned: dict[int, Counter[str]] = {}

        def owner(op: Any, c: Collective) -> int:
            if op.kind == GRADIENT:
                return op.inputs[1]
            if c.result is not None:
                return feeds.get(op.outputs[c.result], -1)
            return -1 if c.argument is None else origin.get(op.inputs[c.argument], -1)

        def visit(op: Any, p: Price) -> None:
            for c in p.collectives:
                owned.setdefault(owner(op, c), Counter())[c.name] += c.received

        self._priced(choice, visit)
        return owned


def _with(choice: Choice, moves: Sequence[tuple[int, int]]) -> Choice:
    changed = list(choice)
    for i, c in moves:
        changed[i] = c
    return tuple(changed)


def _decisions(trace: Trace, mesh: Mesh, module: nn.Module) -> list[Decision]:
    """Returns the decisions in the order of first use. Names omit the indices of blocks (modules in a list that have children). Parameters
    of one name and shape share a decision, and so do inputs of one batch size."""
    used: dict[int, int] = {}
    for i, op in enumerate(trace.ops):
        for v in op.inputs:
            used.setdefault(v, i)
    blocks = {name for name, m in module.named_modules() if name.rpartition(".")[2].isdecimal() and next(m.children(), None) is not None}
    axes = [i for i, n in enumerate(mesh.mesh_shape) if n > 1]
    found: dict[Any, Decision] = {}
    seen: set[int] = set()
    for name, v in trace.parameters.items():
        value = trace.values[v]
        if value.sharding is not None:  # marked by the program
            continue
        path = name.split(".")
        pattern = ".".join("*" if ".".join(path[: i + 1]) in blocks else part for i, part in enumerate(path))
        key = (pattern, value.shape, value.dtype, v in trace.trainable)
        d = found.setdefault(key, Decision(pattern, [], [], value.shape, _candidates(value.shape, mesh, axes)))
        d.members.append(name)
        if v not in seen:
            d.values.append(v)
            seen.add(v)
    for name, v in trace.inputs.items():
        value = trace.values[v]
        if value.sharding is not None or not value.shape:
            continue
        key = ("input", value.shape[0])
        whole = [((),), *((s,) for s in _sets(axes) if _parts(mesh, s) <= value.shape[0])]
        d = found.setdefault(key, Decision("", [], [], value.shape, whole, is_input=True))
        d.members.append(name)
        d.values.append(v)
        d.name = f"input {', '.join(d.members)}"
    decisions = [d for d in found.values() if d.values]
    return sorted(decisions, key=lambda d: (min(used.get(v, len(trace.ops)) for v in d.values), d.name))


def _sets(axes: Sequence[int]) -> list[Axes]:
    return [s for r in range(1, len(axes) + 1) for s in itertools.combinations(axes, r)]


def _parts(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.mesh_shape[a] for a in axes)


def _candidates(shape: tuple[int, ...], mesh: Mesh, axes: Sequence[int]) -> list[tuple[Axes, ...]]:
    """Whole first, then one dimension split over each set of axes, then two dimensions over separate axes."""
    rank = len(shape)
    found: list[tuple[Axes, ...]] = [((),) * rank]
    for chosen in _sets(axes):
        found += [tuple(chosen if i == d else () for i in range(rank)) for d in range(rank) if _parts(mesh, chosen) <= shape[d]]
    for a, b in itertools.permutations(_sets(axes), 2):
        if set(a) & set(b):
            continue
        found += [
            tuple(a if i == d else b if i == e else () for i in range(rank))
            for d, e in itertools.combinations(range(rank), 2)
            if _parts(mesh, a) <= shape[d] and _parts(mesh, b) <= shape[e]
        ]
    return found


# ---- use_spmd(auto=True) -----------------------------------------------------------------------------------------------------------------


class _Choosing:
    """Prevents choices by module calls inside of it."""

    depth = 0

    def __enter__(self) -> None:
        _Choosing.depth += 1

    def __exit__(self, *error: object) -> None:
        _Choosing.depth -= 1


_call: Callable[..., Any] | None = None
_memory_budget: int | str | None = None
_known: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def enable(memory_budget: int | str | None) -> None:
    """Makes the first outermost call of each module on the device choose specs for it."""
    global _call, _memory_budget
    _memory_budget = memory_budget
    if _call is None:
        _call = nn.Module.__call__
        nn.Module.__call__ = _outermost


def disable() -> None:
    global _call
    if _call is not None:
        nn.Module.__call__, _call = _call, None


def _outermost(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    call = _call or nn.Module._wrapped_call_impl
    if _Choosing.depth:
        return call(self, *args, **kwargs)
    with _Choosing():
        if self not in _known:
            _choose(self, args, kwargs, None, _memory_budget)
        return call(self, *args, **kwargs)


def choose_at_first_call(module: nn.Module, mesh: Mesh) -> None:
    """Chooses specs on this mesh at the first call of ``module``, which is on the device."""

    def first(module: nn.Module, args: tuple, kwargs: dict) -> None:
        handle.remove()
        _choose(module, args, kwargs, mesh, None)

    handle = module.register_forward_pre_hook(first, with_kwargs=True)


def _choose(module: nn.Module, args: tuple, kwargs: dict, mesh: Mesh | None, memory_budget: int | str | None) -> None:
    parameters = list(module.parameters())
    if not parameters or not all(isinstance(p, Tensor) for p in parameters):
        return
    _known.add(module)
    if all(p._box.mark is not None for p in parameters):
        return
    module = getattr(module, "_orig_mod", module)  # the module inside torch.compile's wrapper
    try:
        plan = _planned(module, args, kwargs, mesh, memory_budget, 2, Machine())
    except Untraceable as error:
        warnings.warn(f"shoal.spmd: automatic sharding leaves {type(module).__name__} whole: {error}", stacklevel=4)
        return
    _print(plan)
    plan.apply(module)
    plan.mark_inputs(args, kwargs)


def _shape(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _spec_text(spec: Spec) -> str:
    return "whole" if all(entry is None for entry in spec) else str(tuple(spec))


def _size(n: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n:.0f} B"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _received(collectives: dict[str, float]) -> str:
    return ", ".join(f"{name} {_size(n)}" for name, n in sorted(collectives.items())) or "-"


__all__ = ["Machine", "Row", "ShardingPlan", "auto_shard", "choose_at_first_call", "disable", "enable"]
