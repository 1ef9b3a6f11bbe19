"""One forward and backward pass on tensors without memory, as the list of operators that devices would run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from shoal.exceptions import InvalidArgument
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Parameter, Tensor
from shoal.spmd._layout import devices, processes
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.sharding import Sharding


class Untraceable(InvalidArgument):
    """Error for a module whose forward reads values, so that it cannot be recorded. Its tensors have to be marked by hand."""


# Operators that only change the shape, though their schemas do not mark them as views.
_VIEWS = {"aten::_unsafe_view"}


@dataclass
class Value:
    """A tensor of the step. ``sharding``: its sharding at the start of the step; None if the operator that makes it decides."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    sharding: Sharding | None = None


@dataclass(frozen=True)
class Kind:
    """The properties of operators that cost the same. ``leaves``: the flat arguments, with None for the tensors at ``places``."""

    func: Any
    leaves: tuple[Any, ...]
    tree: Any
    places: tuple[int, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value | None, ...]
    written: tuple[int, ...]  # indices of inputs that are changed in place
    is_view: bool
    flops: float


@dataclass
class Op:
    """One operator of the step. ``kind``: an index of the trace's kinds, or GRADIENT, or MARK. GRADIENT: from here on the first input, a
    gradient, is sharded like its parameter, the second input. MARK: the program marks the input with ``sharding``. ``outputs``: -1 for
    other values than tensors."""

    kind: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sharding: Sharding | None = None  # the marked sharding, if ``kind`` is MARK


GRADIENT, MARK = -1, -2


@dataclass
class Trace:
    """Values and operators, in the order of their appearance. ``parameters`` and ``inputs``: indices of values by name."""

    values: list[Value] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    trainable: set[int] = field(default_factory=set)


def _twin(t: torch.Tensor, requires_grad: bool = False) -> Tensor:
    """Returns a device tensor with the shape and dtype of ``t``, without memory."""
    stored = torch.empty_strided(t.shape, _strides(t), dtype=t.dtype, device="meta")
    return Tensor(Box(Array.whole(stored, devices.global_runtime_device_count())), requires_grad)


def _strides(t: torch.Tensor) -> Sequence[int]:
    return torch.empty(t.shape, device="meta").stride() if isinstance(t, Tensor) else t.stride()


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace
        self._numbers: dict[int, int] = {}  # by id of a tensor's box: the number of its Value
        self._marks: dict[int, Sharding] = {}
        self._twins: dict[int, Tensor] = {}
        self._kinds: dict[Any, int] = {}
        self._kept: list[Any] = []  # keeps objects alive, because their ids are keys

    def number(self, t: Tensor, sharding: Sharding | None = None) -> int:
        found = self._numbers.get(id(t._box))
        if found is None:
            return self._name(t, Value(tuple(t.shape), t.dtype, sharding))
        return found

    def _name(self, t: Tensor, value: Value) -> int:
        self._kept.append(t._box)
        self._numbers[id(t._box)] = len(self.trace.values)
        self.trace.values.append(value)
        return len(self.trace.values) - 1

    def gradient(self, p: Tensor) -> None:
        """Records that a gradient is complete, and from here on sharded like its parameter."""
        gradient = self.number(p.grad)
        number = self._name(p.grad, Value(tuple(p.shape), p.dtype))
        self.trace.ops.append(Op(GRADIENT, (gradient, self.number(p)), (number,)))

    def _there(self, a: Any) -> Any:
        """Returns the argument for recording. A tensor of the program, on the device or the host, is replaced by one without memory. A host
        tensor has no number: it is a constant of the step."""
        if not isinstance(a, torch.Tensor):
            return a
        if isinstance(a, Tensor):
            if isinstance(a._box, Box) and all(local.is_meta for local in a._box.array.locals.values()):
                return a
            if id(a._box) not in self._twins:
                self._kept.append(a._box)
                self._twins[id(a._box)] = _twin(a)
                self.number(self._twins[id(a._box)], a._box.array.sharding)
            return self._twins[id(a._box)]
        return a if a.is_meta or a.dim() == 0 else torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="meta")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        on_device = device is not None and torch.device(device).type == DEVICE.type
        tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, Tensor)]
        if on_device and tensors:
            kwargs.pop("device")
        if not tensors:
            if not on_device:
                return func(*args, **kwargs)
            args, kwargs = tree_map(self._there, (args, {**kwargs, "device": torch.device("meta")}))
            results = tree_map(lambda t: _twin(t) if isinstance(t, torch.Tensor) else t, func(*args, **kwargs))
            for t in tree_flatten(results)[0]:
                if isinstance(t, Tensor):
                    self.number(t, Sharding.replicated(t.dim(), devices.global_runtime_device_count()))
            return results
        args, kwargs = tree_map(self._there, (args, kwargs))
        flat, tree = tree_flatten((args, kwargs))
        places = [i for i, a in enumerate(flat) if isinstance(a, Tensor)]
        for i in places:
            self._note_mark(flat[i])
        inputs = tuple(self.number(flat[i]) for i in places)
        out = func(*args, **kwargs)
        results = tree_flatten(out)[0]
        outputs = tuple(self.number(r) if isinstance(r, Tensor) else -1 for r in results)
        self.trace.ops.append(Op(self._kind(func, args, kwargs, flat, tree, places, inputs, out, outputs), inputs, outputs))
        return out

    def _note_mark(self, t: Tensor) -> None:
        mark = t._box.mark
        if mark is None or self._marks.get(id(t._box)) == mark:
            return
        self._marks[id(t._box)] = mark
        before = self.number(t)
        after = self._name(t, Value(tuple(t.shape), t.dtype))
        self.trace.ops.append(Op(MARK, (before,), (after,), mark))

    def _kind(self, func, args, kwargs, flat, tree, places, inputs, out, outputs) -> int:
        values = self.trace.values
        like = [Value(values[i].shape, values[i].dtype) for i in inputs]
        results = [None if i < 0 else Value(values[i].shape, values[i].dtype) for i in outputs]
        leaves = tuple(None if i in places else a for i, a in enumerate(flat))
        key = (func, repr(tree), repr(leaves), repr(like), repr(results))
        number = self._kinds.get(key)
        if number is None:
            number = self._kinds[key] = len(self.trace.kinds)
            written = _written(func, args, kwargs)
            self.trace.kinds.append(
                Kind(
                    func,
                    leaves,
                    tree,
                    tuple(places),
                    tuple(like),
                    tuple(results),
                    tuple(k for k, i in enumerate(places) if any(flat[i] is w for w in written)),
                    is_view(func),
                    _flops(func, args, kwargs, out),
                )
            )
        return number


def _written(func: Any, args: tuple, kwargs: dict) -> list[Any]:
    found: list[Any] = []
    for i, a in enumerate(func._schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            value = args[i] if i < len(args) and not a.kwarg_only else kwargs.get(a.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return found


def is_view(func: Any) -> bool:
    alias = func._schema.returns[0].alias_info if func._schema.returns else None
    return func._schema.name in _VIEWS or (alias is not None and not alias.is_write)


def _flops(func: Any, args: tuple, kwargs: dict, out: Any) -> float:
    """Arithmetic operations of operators that do more than one per element; 0 for others."""
    name = func._schema.name
    if name.startswith("aten::_scaled_dot_product"):
        backward = name.endswith("_backward")
        q, k = args[1:3] if backward else args[:2]
        return (10.0 if backward else 4.0) * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * q.shape[3]
    count = flop_registry.get(func.overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


def record(module: nn.Module, args: tuple, kwargs: dict, training: bool) -> Trace:
    """Records the operators of ``module(*args, **kwargs)``, and with ``training`` of the backward pass from its results (from the scalars,
    if any). Tensors in ``args`` and ``kwargs`` may lie anywhere: only their shapes matter. The module and the random stream stay unchanged.
    Raises Untraceable when the program reads a value."""
    trace = Trace()
    recorder = _Recorder(trace)
    parameters, buffers = {}, {}
    for name, p in module.named_parameters():
        twin = parameters[name] = Parameter(_twin(p)._box, p.requires_grad)
        sharding = p._box.array.sharding if isinstance(p, Tensor) and p._box.mark is not None else None
        trace.parameters[name] = recorder.number(twin, sharding)
        if p.requires_grad and training:
            trace.trainable.add(trace.parameters[name])
            twin.register_post_accumulate_grad_hook(recorder.gradient)
    for name, b in module.named_buffers():
        buffers[name] = _twin(b)
        recorder.number(buffers[name], _lying(b))
    flat, tree = tree_flatten((args, kwargs))
    for i, a in enumerate(flat):
        if isinstance(a, torch.Tensor):
            flat[i] = _twin(a, a.requires_grad)
            trace.inputs[input_name(args, kwargs, i)] = recorder.number(
                flat[i], _lying(a) if isinstance(a, Tensor) and a._box.mark else None
            )
    args, kwargs = tree_unflatten(flat, tree)
    step = _Step(module, training)
    named = {f"module.{name}": t for name, t in (parameters | buffers).items()}
    with _unchanged(module), recorder, torch.set_grad_enabled(training):
        try:
            outputs = torch.func.functional_call(step, named, (args, kwargs))
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise Untraceable(
                f"{type(module).__name__} cannot be traced without values: {type(error).__name__}: {str(error).splitlines()[0]}",
                hint="check the shapes of the inputs; let forward read no values (item, numpy, if t > 0), or mark with mark_sharding",
            ) from error
    trace.outputs = [recorder.number(t) for t in outputs]
    return trace


def _lying(t: torch.Tensor) -> Sharding:
    if isinstance(t, Tensor):
        return t._box.array.sharding
    return Sharding.replicated(t.dim(), devices.global_runtime_device_count())


def input_name(args: tuple, kwargs: dict, place: int) -> str:
    """Returns the name of an argument, from its place in ``tree_flatten((args, kwargs))``."""
    paths = torch.utils._pytree.tree_flatten_with_path((args, kwargs))[0]
    keys = [str(getattr(k, "key", getattr(k, "idx", k))) for k in paths[place][0]]
    return ".".join(keys[1:])


class _Step(nn.Module):
    """Forward and backward in one call. ``functional_call`` replaces the module's parameters for one call only, and a backward pass that
    recomputes activations needs the replaced ones, too."""

    def __init__(self, module: nn.Module, training: bool):
        super().__init__()
        self.module, self._training = module, training

    def forward(self, args: tuple, kwargs: dict) -> list[Tensor]:
        results = [t for t in tree_flatten(self.module(*args, **kwargs))[0] if isinstance(t, Tensor)]
        with_gradients = [t for t in results if t.requires_grad]
        # if there is a loss, a scalar, the backward begins there only
        with_gradients = [t for t in with_gradients if t.dim() == 0] or with_gradients
        if self._training and with_gradients:
            torch.autograd.backward(with_gradients, [torch.ones_like(t) for t in with_gradients])
        return results


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restores the modules' attributes and the random stream at the end of the ``with`` block."""
    saved = [(m, dict(vars(m))) for m in module.modules()]
    state = torch.get_rng_state()
    controller, processes.controller = processes.controller, None  # without a controller, because the ranks must not run these operators
    try:
        yield
    finally:
        processes.controller = controller
        torch.set_rng_state(state)
        for m, attributes in saved:
            vars(m).clear()
            vars(m).update(attributes)


__all__ = ["GRADIENT", "MARK", "Kind", "Op", "Trace", "Untraceable", "Value", "input_name", "is_view", "record"]
