"""Observes a unit's forward for reasons why the unit cannot run on rows of the batch: hooks, tensors that outlive the forward, and a
``torch.autograd.Function`` of the program behind its outputs."""

from __future__ import annotations

import contextlib
import gc
import operator
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules_of_torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from shoal.spmd._engine.tensor import Parameter, Tensor
from shoal.spmd._fsdp.parameter import EngineParameter
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding

# relative to the largest output, because a unit's two runs may sum in different orders
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

CONSTANTS = (int, float, complex, bool, str, bytes, torch.dtype, torch.device, Enum, type(None))


def have_hooks(parameters: Iterable[nn.Parameter]) -> bool:
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters)


def hooks_of(m: nn.Module) -> tuple[dict, ...]:
    return m._forward_pre_hooks, m._forward_hooks, m._backward_pre_hooks, m._backward_hooks


def hooks_of_all() -> tuple[dict, ...]:
    """Returns the dicts of hooks that apply to all modules."""
    m = modules_of_torch
    return m._global_forward_pre_hooks, m._global_forward_hooks, m._global_backward_pre_hooks, m._global_backward_hooks


def is_of_program(function: Any) -> bool:
    name = getattr(getattr(function, "func", function), "__module__", None) or ""
    return name.partition(".")[0] not in ("torch", "shoal")


def kept_by(m: nn.Module) -> list[Any]:
    """Returns the places in which a module keeps values: its attributes, and the program's containers and objects reachable from them."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [vars(m)]
    while waiting and len(found) < _MOST_PLACES:
        of = waiting.pop()
        if id(of) in found:
            continue
        found[id(of)] = of
        if len(of) > _MOST_PLACES:
            continue
        for v in list(of.values() if isinstance(of, dict) else of):
            if isinstance(v, (dict, list, set, deque)):
                waiting.append(v)
            elif type(v) not in _PLAIN and _is_object_of_program(v):
                waiting.append(vars(v))
    return list(found.values())


_MOST_PLACES = 10_000
_PLAIN = {*CONSTANTS, tuple, torch.Tensor, Tensor, Parameter, EngineParameter, FunctionType, BuiltinFunctionType, MethodType}
_NOT_THE_PROGRAMS = {*sys.stdlib_module_names, "torch", "shoal", "numpy"}


def _is_object_of_program(v: Any) -> bool:
    if isinstance(v, (type, nn.Module, torch.Tensor)) or not hasattr(v, "__dict__"):
        return False
    return type(v) is SimpleNamespace or type(v).__module__.partition(".")[0] not in _NOT_THE_PROGRAMS


def put_back(container: Any, before: Any) -> str:
    """Restores a container's content. Returns a text that names the changes; "" if there were none."""
    if not isinstance(container, dict):
        if len(container) == len(before) and all(map(operator.is_, container, before)):
            return ""
        container.clear()
        container.update(before) if isinstance(container, set) else container.extend(before)
        return f"a {type(container).__name__}"
    changed = [k for k in {**before, **container} if k not in container or k not in before or container[k] is not before[k]]
    for k in changed:
        if k in before:
            container[k] = before[k]
        else:
            del container[k]
    return ", ".join(map(str, changed))


class ResultsRecorder(TorchFunctionMode):
    """Records the tensors of class ``kind`` that torch's functions return."""

    def __init__(self, kind: type[torch.Tensor]):
        super().__init__()
        self._kind = kind
        self._refs: list[weakref.ref] = []

    def note(self, out: Any) -> None:
        if isinstance(out, self._kind):
            self._refs.append(weakref.ref(out))
        elif isinstance(out, (list, tuple)):
            for o in out:
                self.note(o)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not any(out is a for a in args):
            self.note(out)
        return out

    def kept(self, but: list[Any]) -> bool:
        """True if a recorded tensor still exists that is no parameter and not in ``but``."""
        others = {id(b) for b in but}
        for collected in (False, True):
            if collected:
                gc.collect()
            if not any(_is_there(ref, others) for ref in self._refs):
                return False
        return True


def _is_there(ref: weakref.ref, others: set[int]) -> bool:
    t = ref()
    return t is not None and id(t) not in others and not isinstance(t, nn.Parameter)


@contextlib.contextmanager
def gradients_watched() -> Iterator[list[str]]:
    """Yields a list to which each use of tensor hooks or grad_fn in the ``with`` block adds a text."""
    said: list[str] = []

    def noting(name: str, found: Any) -> Any:
        def noted(self: torch.Tensor, *args: Any) -> Any:
            said.append(f"it uses {name} of a tensor")
            return found(self, *args)

        return noted

    hooks = {name: getattr(torch.Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook")}
    try:
        for name, found in hooks.items():
            setattr(torch.Tensor, name, noting(name, found))
        torch.Tensor.grad_fn = property(noting("grad_fn", torch._C.TensorBase.grad_fn.__get__))
        yield said
    finally:
        for name, found in hooks.items():
            setattr(torch.Tensor, name, found)
        del torch.Tensor.grad_fn


def function_behind(outputs: list[torch.Tensor]) -> str | None:
    """The name of a torch.autograd.Function behind the outputs, if it is the program's or hides the operators that it runs."""
    nodes, seen = [o.grad_fn for o in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(node, "_forward_cls", None)
        if function is not None and (is_of_program(function) or function is CheckpointFunction):
            return function.__name__
        nodes += [n for n, _ in node.next_functions]
    return None


def rows_of(rank: int) -> Sharding:
    n = world().num_devices
    return Sharding((n, *(1,) * (rank - 1)), tuple(range(n)))


def is_by_rows(sharding: Sharding) -> bool:
    n = world().num_devices
    return sharding.parts[:1] == (n,) and sharding.devices == tuple(range(n))


def are_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = _TOLERANCE.get(b.dtype, 1e-2)
    a, b = a.detach().double(), b.detach().double()
    scale = float(b.abs().max()) if b.numel() else 1.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)
