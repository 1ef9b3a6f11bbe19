"""The cost of an operator for each layout of its arguments: time, memory, and communication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.spmd._auto.trace import GRADIENT, MARK, Kind, Op, Trace, Value, is_view
from shoal.spmd._engine import execution
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._layout.traffic import move_of, summed
from shoal.spmd._rules.registry import Steps


@dataclass(frozen=True)
class Machine:
    """The speeds of a device, and of the links between devices. A collective takes ``latency`` seconds per step, and each device receives
    ``bandwidth`` bytes per second (the alpha-beta model). An operator takes the longer of its arithmetic at ``flops`` and its bytes at
    ``memory_bandwidth``. The defaults suit CPU cores of one host; accelerators need other values."""

    latency: float = 30e-6  # seconds per step of a collective
    bandwidth: float = 5e9  # bytes per second that a device receives
    flops: float = 50e9  # arithmetic operations per second
    memory_bandwidth: float = 10e9  # bytes per second that a device reads or writes


@dataclass(frozen=True)
class Collective:
    """One communication of an operator. ``received``: bytes by the device that receives most. ``argument``: the index of the resharded
    argument. ``result``: the index of the summed result. Both are None for communication between an operator's steps."""

    name: str
    received: float
    seconds: float
    argument: int | None = None
    result: int | None = None


@dataclass(frozen=True)
class Price:
    """The cost of one operator. ``result_bytes``: bytes per device of each result with its own memory. ``extra``: bytes per device of
    temporarily resharded arguments. ``outputs``: the results' shardings, as numbers."""

    outputs: tuple[int, ...]
    seconds: float
    collectives: tuple[Collective, ...]
    result_bytes: tuple[float, ...]
    extra: float


def local_bytes(value: Value, sharding: Sharding) -> float:
    """Returns the size in bytes of the value's largest part under this sharding."""
    return math.prod(sharding.tile(value.shape)) * value.dtype.itemsize


class Prices:
    """Prices of a trace's operators. Shardings are numbers here: ``number`` assigns them, ``shardings`` maps them back."""

    def __init__(self, trace: Trace, num_devices: int, machine: Machine):
        self.trace, self.num_devices, self.machine = trace, num_devices, machine
        self.shardings: list[Sharding] = []
        self._numbers: dict[Sharding, int] = {}
        self._bytes: dict[tuple[int, int], float] = {}

    def number(self, sharding: Sharding) -> int:
        found = self._numbers.get(sharding)
        if found is None:
            found = self._numbers[sharding] = len(self.shardings)
            self.shardings.append(sharding)
        return found

    def bytes(self, value: int, sharding: int) -> float:
        found = self._bytes.get((value, sharding))
        if found is None:
            found = self._bytes[value, sharding] = local_bytes(self.trace.values[value], self.shardings[sharding])
        return found

    def price(self, op: Op, inputs: Sequence[int]) -> Price:
        lying = [self.shardings[s] for s in inputs]
        if op.kind in (GRADIENT, MARK):
            target = op.sharding if op.kind == MARK else lying[1]
            value = self.trace.values[op.inputs[0]]
            moved = self._moved(value, lying[0], target, 0)
            return Price((self.number(target),), sum(c.seconds for c in moved), tuple(moved), (local_bytes(value, target),), 0.0)
        return self._price(self.trace.kinds[op.kind], lying)

    def _price(self, kind: Kind, lying: list[Sharding]) -> Price:
        arrays = [Array(v.shape, v.dtype, s, {}) for v, s in zip(kind.inputs, lying, strict=True)]
        if kind.func._schema.name == "aten::copy_":  # the engine reshards the source to the target's sharding
            return self._alike(kind, arrays, arrays[0].sharding)
        if all(s.is_replicated for s in lying):
            return self._whole(kind, arrays, [])
        leaves = list(kind.leaves)
        for i, a in zip(kind.places, arrays, strict=True):
            leaves[i] = a
        args, kwargs = tree_unflatten(leaves, kind.tree)
        plan, grid = execution.laid_out(execution.RESOLVED.get(kind.func, kind.func), arrays, args, kwargs, kind.written)
        if isinstance(plan, Steps):
            return self._steps(kind, plan, arrays, args, kwargs)
        if plan is None or grid is None:
            return self._whole(kind, arrays, kind.written)
        inputs = [grid.sharding(labels) for labels in plan.inputs]
        moved = [c for k, a in enumerate(arrays) for c in self._moved(kind.inputs[k], a.sharding, inputs[k], k)]
        labels_of = plan.outputs if len(plan.outputs) == len(kind.outputs) else [plan.outputs[0]] * len(kind.outputs)
        outputs, sums = [], []
        for k, (value, labels) in enumerate(zip(kind.outputs, labels_of, strict=True)):
            outputs.append(None if value is None else grid.sharding(labels))
            parts = 1 if value is None else math.prod(p for label, p in grid.parts.items() if label not in (labels or ()))
            if parts > 1:
                sums.append(self._summed(local_bytes(value, outputs[-1]), parts, k))
        sizes = {label: n for labels, a in zip(plan.inputs, arrays, strict=True) for label, n in zip(labels, a.shape, strict=True)}
        share = math.prod(-(-sizes[label] // p) / sizes[label] for label, p in grid.parts.items() if sizes.get(label))
        return self._priced(kind, inputs, outputs, [*moved, *sums], share, [c.argument for c in moved])

    def _steps(self, kind: Kind, plan: Steps, arrays: list[Array], args: tuple, kwargs: dict) -> Price:
        prices: list[Price] = []
        collectives: list[Collective] = []

        def step(func: Any, *args: Any, **kwargs: Any) -> Any:
            leaves, tree = tree_flatten((args, kwargs))
            places = [i for i, a in enumerate(leaves) if isinstance(a, Array)]
            given = [leaves[i] for i in places]
            stored = list(leaves)
            for i, a in zip(places, given, strict=True):
                stored[i], leaves[i] = torch.empty(a.shape, dtype=a.dtype, device="meta"), None
            positional, named = tree_unflatten(stored, tree)
            outputs = func(*positional, **named)
            results = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            values = [Value(tuple(r.shape), r.dtype) if isinstance(r, torch.Tensor) else None for r in results]
            inputs = tuple(Value(a.shape, a.dtype) for a in given)
            write = func._schema.arguments[0].alias_info
            written = (0,) if write is not None and write.is_write else ()
            of = Kind(func, tuple(leaves), tree, tuple(places), inputs, tuple(values), written, is_view(func), 0.0)
            price = self._price(of, [a.sharding for a in given])
            prices.append(price)
            for c in price.collectives:  # a cost of the argument that it reshards; of no argument if it reshards or sums a step's result
                whose = next((k for k, a in enumerate(arrays) if c.argument is not None and a is given[c.argument]), None)
                collectives.append(replace(c, argument=whose, result=None))
            outs = [
                r if v is None else Array(v.shape, v.dtype, self.shardings[s], {})
                for r, v, s in zip(results, values, price.outputs, strict=True)
            ]
            return outs if isinstance(outputs, (list, tuple)) else outs[0]

        results = plan.run(step, *plan.given, *args, **kwargs)
        numbers = tuple(self.number(r.sharding) if isinstance(r, Array) else -1 for r in results)
        sizes = tuple(0.0 if v is None else local_bytes(v, r.sharding) for v, r in zip(kind.outputs, results, strict=True))
        return Price(numbers, sum(p.seconds for p in prices), tuple(collectives), sizes, max(p.extra for p in prices))

    def _alike(self, kind: Kind, arrays: list[Array], target: Sharding) -> Price:
        """Returns the price of a pointwise operator whose result has the sharding of the first argument."""
        rank = len(target.parts)
        inputs = [target, *(a.sharding for a in arrays[1:])]
        moved = []
        for k, a in enumerate(arrays[1:], 1):
            if len(a.shape) == rank and a.shape == arrays[0].shape:
                inputs[k] = target
                moved += self._moved(kind.inputs[k], a.sharding, target, k)
        return self._priced(kind, inputs, [target] * len(kind.outputs), moved, 1.0, [c.argument for c in moved])

    def _whole(self, kind: Kind, arrays: list[Array], written: Sequence[int]) -> Price:
        whole = [self._replicated(len(a.shape)) for a in arrays]
        moved = [c for k, a in enumerate(arrays) for c in self._moved(kind.inputs[k], a.sharding, whole[k], k)]
        outputs = [None if v is None else self._replicated(len(v.shape)) for v in kind.outputs]
        for k, place in enumerate(written):  # results that are written arguments keep their sharding
            if k < len(outputs) and outputs[k] is not None and kind.outputs[k].shape == kind.inputs[place].shape:
                outputs[k] = arrays[place].sharding
        return self._priced(kind, whole, outputs, moved, 1.0, [c.argument for c in moved])

    def _priced(self, kind, inputs, outputs, collectives, share: float, laid_anew: Sequence[int | None]) -> Price:
        held = [0.0 if v is None else local_bytes(v, s) for v, s in zip(kind.outputs, outputs, strict=True)]
        read = [local_bytes(v, s) for v, s in zip(kind.inputs, inputs, strict=True)]
        extra = sum(read[k] for k in set(laid_anew) if k is not None)
        seconds = 0.0
        if not kind.is_view:
            m = self.machine
            seconds = max(kind.flops * share / m.flops, (sum(read) + sum(held)) / m.memory_bandwidth)
        numbers = tuple(-1 if s is None else self.number(s) for s in outputs)
        sizes = tuple(0.0 if kind.is_view and not laid_anew else b for b in held)
        return Price(numbers, seconds + sum(c.seconds for c in collectives), tuple(collectives), sizes, 0.0 if kind.is_view else extra)

    def _replicated(self, rank: int) -> Sharding:
        return Sharding.replicated(rank, self.num_devices)

    def _moved(self, value: Value, source: Sharding, target: Sharding, argument: int) -> list[Collective]:
        move = move_of(value.shape, source, target)
        if move is None:
            return []
        parts = math.prod(source.parts) / (math.prod(target.parts) if move.collective == "all_gather" else 1)
        size = move.most * value.dtype.itemsize
        seconds = math.ceil(math.log2(max(2, parts))) * self.machine.latency + size / self.machine.bandwidth
        return [Collective(move.collective, size, seconds, argument)]

    def _summed(self, size: float, parts: int, result: int) -> Collective:
        """Returns the all_reduce of a sum: each device receives its share of the summands, then the other devices' sums."""
        got = summed(size, parts)
        seconds = 2 * math.ceil(math.log2(parts)) * self.machine.latency + got / self.machine.bandwidth
        return Collective("all_reduce", got, seconds, result=result)


__all__ = ["Collective", "Machine", "Price", "Prices", "local_bytes"]
