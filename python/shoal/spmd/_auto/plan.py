"""The choice of ``auto_shard``: specs with their costs and reasons, as a table, and their marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from shoal.spmd._auto.trace import input_name
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.mesh import Mesh, Spec
from shoal.spmd._marks.marking import mark_freely, mark_sharding


@dataclass(frozen=True)
class Row:
    """One decision of a plan, with its cost. ``device_bytes``: bytes of its tensors on each device, with gradients and optimizer state.
    ``collectives``: bytes that a device receives per step for these tensors, by collective. ``reason``: the cost of the next best spec."""

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
            lines.append((r.name, many, _shape(r.shape), spec_text(r.spec), size_text(r.device_bytes), _received(r.collectives), r.reason))
        lines.append(("activations", "", "", "", "", _received(self.activations), ""))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        labels = [f"axis {i}" if self.mesh.axis_names is None else self.mesh.axis_names[i] for i in range(len(self.mesh.mesh_shape))]
        axes = " x ".join(f"{n} ({label})" for n, label in zip(self.mesh.mesh_shape, labels, strict=True))
        budget = "" if self.memory_budget is None else f" of {size_text(self.memory_budget)}"
        return "\n".join(
            [
                f"Automatic sharding over {self.mesh.size()} devices, mesh {axes}",
                *table,
                f"A step takes about {time_text(self.seconds)} and {size_text(self.peak_bytes)}{budget} per device; "
                f"with these whole {time_text(self.whole_seconds)} and {size_text(self.whole_bytes)}.",
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
        """Marks unmarked device tensors among the arguments with the specs of the example's inputs at their places."""
        for i, t in enumerate(tree_flatten((args, kwargs))[0]):
            if isinstance(t, Tensor) and t._box.mark is None:
                spec = self.input_specs.get(input_name(args, kwargs, i))
                if spec is not None and len(spec) == t.dim():
                    mark_sharding(t, self.mesh, spec)


def _lay_gradient(p: torch.Tensor) -> None:
    if isinstance(p, Tensor) and isinstance(p.grad, Tensor):
        mark_freely(p.grad, p._box.array.sharding)


# ---- the texts of the table --------------------------------------------------------------------------------------------------------------


def _shape(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def spec_text(spec: Spec) -> str:
    return "whole" if all(entry is None for entry in spec) else str(tuple(spec))


def size_text(n: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n:.0f} B"


def time_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


def _received(collectives: dict[str, float]) -> str:
    return ", ".join(f"{name} {size_text(n)}" for name, n in sorted(collectives.items())) or "-"
