"""The price of each choice of specs on one mesh, and the search for the best."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from shoal.spmd._auto.costs import Collective, Machine, Price, Prices, local_bytes
from shoal.spmd._auto.decisions import Axes, Decision, decisions_of
from shoal.spmd._auto.plan import Row, ShardingPlan, size_text, spec_text, time_text
from shoal.spmd._auto.trace import GRADIENT, MARK, Trace
from shoal.spmd._layout.mesh import Mesh, Spec
from shoal.spmd._layout.sharding import Sharding

Choice = tuple[int, ...]  # by decision: the index of a candidate
_ROUNDS = 8  # rounds of the search; each changes every decision at most once


class Problem:
    """The decisions for one mesh, and the price of each choice."""

    def __init__(self, trace: Trace, mesh: Mesh, machine: Machine, optimizer_states: int, module: nn.Module):
        self.trace, self.mesh, self.machine, self.states = trace, mesh, machine, optimizer_states
        self.prices = Prices(trace, mesh.size(), machine)
        self.decisions = decisions_of(trace, mesh, module)
        self._cache: dict[Choice, tuple[float, float]] = {}
        whole = [self.prices.number(v.sharding or Sharding.replicated(len(v.shape), mesh.size())) for v in trace.values]
        self._begin = whole
        self._numbers = [
            [[self.prices.number(d.sharding(mesh, c, len(trace.values[v].shape))) for v in d.values] for c in range(len(d.candidates))]
            for d in self.decisions
        ]
        self._steps = self._prepared()

    def _prepared(self) -> list[tuple]:
        """Returns, per operator: its inputs and outputs, the values whose memory is free after it, and a table of prices by shardings of
        the inputs. A view has the memory of its base."""
        trace = self.trace
        root = list(range(len(trace.values)))
        produced = set()
        for op in trace.ops:
            for o in op.outputs:
                if o >= 0 and o not in op.inputs:
                    produced.add(o)
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
            if v in produced and v not in kept:
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
            if v in self.trace.trainable:  # an optimizer reads and writes the parameter and its states, and reads the gradient
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
                for v in ends:  # the gradient is not resharded, so its new value takes over the memory of the old one
                    live -= held[v]
                    held[v] = 0.0
            for (o, r, fresh), s, size in zip(outputs, p.outputs, p.result_bytes, strict=False):
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

    def search(self, budget: float, other: tuple[Problem, Choice] | None) -> Choice:
        """Returns the fastest choice within the budget; if none is found, the one with the smallest peak. ``other``: a choice of another
        mesh, at which the search starts, too."""

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
        """Yields joint changes of two nearby matrices, each pair split over the same axes: alone, either change would cost a reshard of the
        activations between the matrices."""
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

    def _adopted(self, other: Problem, choice: Choice) -> Choice:
        """Returns the choice on this mesh that is closest to a choice on another mesh."""
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
        text = spec_text(spec)
        if over:
            return f"{text} would need {size_text(peak)}"
        return f"{text} takes {time_text(more)} more" if more > 0 else f"{text} takes as long"

    def _collectives(self, choice: Choice) -> dict[int, Counter[str]]:
        """Returns the bytes that a device receives, by collective, for each parameter or input that causes them; -1 stands for
        activations."""
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
