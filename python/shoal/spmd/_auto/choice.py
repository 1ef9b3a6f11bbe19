"""Automatic sharding: specs for the parameters and inputs of a module, chosen by the costs of a training step.

Forward and backward of the module are recorded once, without memory. For a choice of specs the engine's own rules give the layouts of each
operator's tensors and the communication. The price of a choice is the time of all operators and the peak memory per device. The search
starts at the usual strategies (whole weights, FSDP, split layers). It changes one decision, or those of two consecutive weights, as long as
that helps. Parameters of repeated blocks share a decision. The search is deterministic and measures nothing: equal modules, inputs and
options give equal specs on every process.
"""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from shoal._core.budget import bytes_of
from shoal.exceptions import InvalidArgument
from shoal.spmd._auto.costs import Machine
from shoal.spmd._auto.plan import Row, ShardingPlan, size_text
from shoal.spmd._auto.problem import Choice, Problem
from shoal.spmd._auto.trace import Untraceable, record
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout import devices
from shoal.spmd._layout.errors import MarkError
from shoal.spmd._layout.mesh import Mesh, get_global_mesh


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
    """Chooses shardings for the unmarked parameters and inputs of ``module``, marks them, and prints the table of choices with reasons on
    stderr.

    ``example_inputs``: a tensor, a tuple of positional arguments, or a dict of keyword arguments, of the sizes of a training step. Module
    and inputs may lie on the host, the device, or (with ``apply=False``) on "meta". Only sizes matter; forward runs once without values.
    ``mesh``: default the global mesh, else XLA_AUTO_SPMD_MESH (sizes such as ``4,2``), else the best of all meshes of one and two axes.
    ``memory_budget``: bytes per device, or text such as "4GiB"; None: unlimited. It covers parameters, gradients, activations and
    ``optimizer_states`` tensors per trainable parameter (2 for Adam). ``machine``: speeds, see Machine. A module in eval mode is planned
    for forward passes only.

    Raises MarkError when SPMD is off, and InvalidArgument for a module whose forward reads values. It also raises InvalidArgument for a
    budget that no choice keeps, and names the smallest possible one.
    """
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
    found: tuple[Problem, Choice] | None = None
    least = math.inf
    for m in meshes:
        problem = Problem(trace, m, machine, optimizer_states, module)
        chosen = problem.search(math.inf if budget is None else budget, found)
        least = min(least, problem.price(chosen)[1])
        if budget is not None and problem.price(chosen)[1] > budget:
            continue
        # earlier meshes are simpler, and prices are estimates: a later mesh must be 3 % faster
        if found is None or problem.price(chosen)[0] < 0.97 * found[0].price(found[1])[0]:
            found = problem, chosen
    if found is None:
        raise InvalidArgument(
            f"memory_budget of {size_text(budget)} per device cannot be kept by {type(module).__name__} on {meshes[0].size()} devices: "
            f"the smallest that can is {math.ceil(least)} bytes ({size_text(least)})",
            hint="raise the budget, use more devices, a smaller batch, or checkpoint_module on the blocks",
        )
    return found[0].plan(found[1], budget)


def _arguments(example: Any) -> tuple[tuple, dict]:
    if isinstance(example, dict):
        return (), example
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def _meshes() -> list[Mesh]:
    """Returns the global mesh, else that of XLA_AUTO_SPMD_MESH, else all meshes of two axes, beginning with (n, 1)."""
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


# ---- use_spmd(auto=True) -----------------------------------------------------------------------------------------------------------------


class _Choosing:
    """Within this context, module calls choose no specs: it surrounds an outermost call, and the recording of a step."""

    depth = 0

    def __enter__(self) -> None:
        _Choosing.depth += 1

    def __exit__(self, *error: object) -> None:
        _Choosing.depth -= 1


_call: Callable[..., Any] | None = None
_memory_budget: int | str | None = None
_known: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def enable(memory_budget: int | str | None) -> None:
    """Makes a module's first call on the device choose specs for it, unless another module's call contains that call."""
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
    """Makes the first call of ``module``, which is on the device, choose specs on this mesh."""

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
    module = getattr(module, "_orig_mod", module)  # torch.compile's wrapper has the module as this attribute
    try:
        plan = _planned(module, args, kwargs, mesh, memory_budget, 2, Machine())
    except Untraceable as error:
        warnings.warn(f"shoal.spmd: automatic sharding leaves {type(module).__name__} whole: {error}", stacklevel=4)
        return
    _print(plan)
    plan.apply(module)
    plan.mark_inputs(args, kwargs)


__all__ = ["Machine", "Row", "ShardingPlan", "auto_shard", "choose_at_first_call", "disable", "enable"]
