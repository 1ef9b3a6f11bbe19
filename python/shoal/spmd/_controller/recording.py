"""The operators of a program that controls ranks: their records, and the metadata of their results.

A tensor here has a shape, a dtype and a number, by which the ranks name it. The first time that an operator has arguments of these shapes,
dtypes and constants, the ranks report the metadata of its results. For views by index, such as select, this process computes them. Later
calls are recorded, and the program continues at once. Ranks compare an operator's results with the metadata that the program has.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from shoal.exceptions import Unimplemented
from shoal.spmd._controller.controller import Controller, Position, called_from
from shoal.spmd._controller.remote import Meta, RemoteBox
from shoal.spmd._controller.replaying import CONSTANT, LIST, TENSOR, VALUE, Large, Small, Stream, state_bytes, state_tensor
from shoal.spmd._engine.box import Box, known_strides
from shoal.spmd._engine.dispatch import consists_of_others, reshaped
from shoal.spmd._engine.host_tensors import check_devices
from shoal.spmd._engine.operator import Operator, flatten
from shoal.spmd._engine.strides import lies_by_shape, strides_of
from shoal.spmd._engine.tensor import Parameter, Tensor
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._marks.patched import SPECIAL  # the table, to which this module adds an operator

aten = torch.ops.aten
_LARGE = 1 << 16  # a host value of at least this many bytes travels by reference, beside the batch
_PLANS = 1 << 14  # the most plans in the cache: a program may have new shapes at every step
_DYNAMIC = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_INDEXING = {"aten::select", "aten::slice", "aten::split", "aten::split_with_sizes", "aten::unbind"}
# Random operators that draw one number per element. This process runs them on zeros, to know the state of the random stream after them.
_COUNTED = {"bernoulli", "bernoulli_", "native_dropout", "uniform_", "random_", "exponential_"}
_ATTENTION = ("_scaled_dot_product_", "_fused_sdp_choice")


class _Function(Operator):
    """Further facts of an operator, which recording needs."""

    __slots__ = ("composite", "counted", "drawn_by_key", "dynamic", "func", "indexes", "keyword_scalars", "scalars")

    def __init__(self, func: Any):
        super().__init__(func)
        self.func = func
        # By argument: True if it may be a number (its type is Scalar, a list of them, or Tensor). Its numbers are sent with each call, so
        # that calls with other numbers need no new plan.
        scalars = {a.name: any(word in str(a.type) for word in ("number", "Tensor")) for a in func._schema.arguments}
        self.scalars = tuple(scalars[a.name] for a in func._schema.arguments if not a.kwarg_only)
        self.keyword_scalars = scalars
        self.counted = self.name in _COUNTED
        # True if shapes and constants determine whether the operator draws, so that a plan can state it. For others, such as poisson,
        # values determine how much is drawn.
        self.drawn_by_key = self.counted or self.name.startswith(_ATTENTION)
        self.dynamic = any(tag in func.tags for tag in _DYNAMIC)
        self.composite = consists_of_others(func)
        self.indexes = self.is_view and self.qualified_name in _INDEXING

    def depends_on_values(self, call: _Call) -> bool:
        """True if the result's shape depends on values of the arguments."""
        if self.func is not aten.index.Tensor:
            return self.dynamic
        masks = {torch.bool, torch.uint8}
        return not masks.isdisjoint(t.dtype for t in call.tensors[1:]) or any(k in masks for k in call.key if isinstance(k, torch.dtype))


class _Plan:
    """The results that an operator has for given shapes and constants. ``results``: per result a Meta, the index of a tensor argument, or
    None. If ``results`` itself is None, the ranks are asked at each call."""

    __slots__ = ("draws", "kind", "new", "results", "template")

    def __init__(self, template: int):
        self.template = template
        self.results: list | None = None
        self.kind: type | None = None
        self.new = 0
        self.draws = True  # the operator draws from the random stream


class _Call:
    """The arguments of one call: its key among the plans, its tensors, and the values to send."""

    __slots__ = ("boxes", "cls", "generator", "host", "key", "repeated", "tensors", "values")

    def __init__(self, func: Any, dtype: torch.dtype):
        self.key: list[Any] = [func, dtype]
        self.tensors: list[Tensor] = []
        self.boxes: list[int] = []
        self.values: list[Any] = []
        self.host = False  # True if an argument is a host tensor
        self.repeated = False  # True if one tensor is several arguments
        self.cls: Any = Tensor
        self.generator: torch.Generator | None = None


class Recorder(Controller):
    """The Controller that records operators on tensors of the ranks; ``dispatch`` runs in place of the engine's."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._functions: dict[Any, _Function] = {}
        self._plans: dict[tuple, _Plan] = {}
        self._templates = 0
        self._next = 0
        self._modes = (torch.float32, "highest", False, False)  # torch's modes as sent to the ranks last

    def dispatch(self, func: Any, args: tuple, kwargs: dict) -> Any:
        special = _SPECIAL.get(func)
        return self.operator(func, args, kwargs) if special is None else special(self, func, args, kwargs)

    def operator(self, func: Any, args: tuple, kwargs: dict) -> Any:
        f = self._functions.get(func)
        if f is None:
            f = self._functions[func] = _Function(func)
        if f.composite:
            return func.decompose(*args, **kwargs)
        if f.reshapes:
            return reshaped(func, args, kwargs)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type != DEVICE.type:
            if not in_backward():
                return func(*_on_host(args), **_on_host(kwargs))
            kwargs = {**kwargs, "device": DEVICE}  # autograd names the CPU as the device of device tensors
        with self.lock:
            call = _Call(func, self._send_modes()[0])
            a = None
            for i, a in enumerate(args):
                self._walk(call, a, f.scalars[i])
            for name, a in kwargs.items():
                call.key.append(name)
                self._walk(call, a, f.keyword_scalars[name])
            if call.host:
                del a  # `a` is a reference to the last argument, and check_devices counts the references to arguments
                targets = f.written_by(args, kwargs)
                if not in_backward():
                    check_devices(func, args, tree_leaves((args, kwargs)), targets)
                if not all(isinstance(t, Tensor) for t in targets):
                    return self._into_host(func, args, kwargs, targets)
            if f.random:
                call.key += [v for v in call.values if type(v) is float]
            boxes = call.boxes
            if len(boxes) > 1 and len(set(boxes)) < len(boxes):
                call.repeated = True
                first_of = {number: i for i, number in reversed(list(enumerate(boxes)))}
                call.key += [first_of[number] for number in boxes]
            key = tuple(call.key)
            plan = self._plans.get(key)
            if plan is None:
                if len(self._plans) >= _PLANS:
                    self._plans.clear()
                    Meta.forget()
                    self.add(("forget_templates",))
                plan = self._plans[key] = self._planned(f, call, args, kwargs)
            random = self._random(f, plan, call, args, kwargs) if f.random else None
            first = self._next
            item = (plan.template, call.boxes, call.values, first, random)
            if plan.results is None or (random is not None and random[1] is None):
                return self._query_results(f, plan, call, item, args, kwargs)
            self._next += plan.new
            at = self.add(item)
            self.pace()
        return self._tensors_of(f, plan.kind, plan.results, call, first, at, args, kwargs)

    def _send_modes(self) -> tuple[torch.dtype, str, bool, bool]:
        """Sends torch's modes (dtype, precision, determinism) to the ranks after a change, because results depend on them. Returns them."""
        modes = _modes_of_torch()
        if modes != self._modes:
            self._modes = modes
            self.add(("modes", *modes))
        return modes

    # ---- arguments

    def _walk(self, call: _Call, a: Any, scalar: bool) -> None:
        kind = type(a)
        if kind in _OURS or isinstance(a, Tensor):
            box = a._box
            if type(box) is not RemoteBox:
                box = self.adopt(a)
            call.key.append(box._array)
            call.boxes.append(box.number)
            call.tensors.append(a)
            if call.cls is Tensor:
                call.cls = getattr(kind, "result", Tensor)
        elif kind is float or kind is complex or (scalar and (kind is int or kind is bool)):
            call.key.append(kind)
            call.values.append(a)
        elif kind is int or kind is bool or a is None or kind in _CONSTANTS:
            call.key.append(a)
        elif isinstance(a, (list, tuple)):
            if any(isinstance(e, torch.Tensor) for e in a):
                call.key.append(len(a))
                for e in a:
                    self._walk(call, e, scalar)
            elif scalar:
                call.key += [len(a), *map(type, a)]
                call.values.append(list(a))
            else:
                call.key.append(tuple(a))
        elif isinstance(a, torch.Tensor):
            call.host = True
            call.key += [torch.Tensor, tuple(a.shape), a.dtype]
            call.values.append(self.sent(a))
        elif isinstance(a, torch.Generator):
            call.key.append(torch.Generator)
            call.values.append(Stream(state_bytes(a.get_state())))
            call.generator = a
        else:
            call.key.append(kind)
            call.values.append(a)

    def _tree(self, a: Any, scalar: bool) -> tuple:
        """Returns the description of an argument in a template. The cases must be those of _walk."""
        kind = type(a)
        if isinstance(a, Tensor):
            return (TENSOR,)
        if kind is float or kind is complex or (scalar and (kind is int or kind is bool)):
            return (VALUE,)
        if kind is int or kind is bool or a is None or kind in _CONSTANTS:
            return (CONSTANT, a)
        if isinstance(a, (list, tuple)):
            if any(isinstance(e, torch.Tensor) for e in a):
                return (LIST, [self._tree(e, scalar) for e in a])
            return (VALUE,) if scalar else (CONSTANT, list(a))
        return (VALUE,)

    def sent(self, value: torch.Tensor) -> Small | Large:
        """Returns a copy of a host tensor for the batch."""
        if value.numel() * value.element_size() < _LARGE:
            return Small.from_tensor(value)
        return Large(self.beside(value.detach()))

    def _planned(self, f: _Function, call: _Call, args: tuple, kwargs: dict) -> _Plan:
        plan = _Plan(self._templates)
        self._templates += 1
        if f.indexes:  # computed here: each new index needs a plan, and a question to the ranks for each would be slow
            with contextlib.suppress(Exception):  # the ranks run the operator as well, and report its error
                plan.kind, plan.results = self._viewed(f, args, kwargs)
                plan.new = len(plan.results)
        positional = [self._tree(a, f.scalars[i]) for i, a in enumerate(args)]
        keyword = [(name, self._tree(a, f.keyword_scalars[name])) for name, a in kwargs.items()]
        expected = None if plan.results is None else [(m.shape, m.dtype) for m in plan.results]
        self.add(("template", plan.template, str(f.func), positional, keyword, expected))
        return plan

    def _viewed(self, f: _Function, args: tuple, kwargs: dict) -> tuple[type | None, list[Meta]]:
        out = f.func(*_without_values(args), **_without_values(kwargs))
        kind = type(out) if isinstance(out, (list, tuple)) else None
        return kind, [Meta.cached(o.shape, o.dtype) for o in (out if kind else [out])]

    def _into_host(self, func: Any, args: tuple, kwargs: dict, targets: list[torch.Tensor]) -> Any:
        """Runs in this process an operator that writes to a host tensor which torch's own code has made."""
        if any(isinstance(t, Tensor) for t in targets):
            raise Unimplemented(f"{func} writes to a tensor of the host and to one of the device", hint="move both to the device")
        return func(*_on_host(args), **_on_host(kwargs))

    # ---- results

    def _query_results(self, f: _Function, plan: _Plan, call: _Call, item: tuple, args: tuple, kwargs: dict) -> Any:
        kind, found, after = self.query(("ask", *item))
        results = [Meta.cached(*r) if type(r) is tuple and len(r) == 2 else r for r in found]
        self._next += sum(type(r) is Meta for r in results)
        if item[4] is not None:
            if after != item[4][0]:
                (torch.default_generator if call.generator is None else call.generator).set_state(state_tensor(after))
            elif f.drawn_by_key:
                plan.draws = False
        if not f.depends_on_values(call) and all(type(r) is not tuple or r[0] is None for r in results):
            plan.kind, plan.results, plan.new = kind, results, self._next - item[3]
        return self._tensors_of(f, kind, results, call, item[3], called_from(), args, kwargs)

    def _tensors_of(
        self, f: _Function, kind: type | None, results: list, call: _Call, first: int, at: Position, args: tuple, kwargs: dict
    ) -> Any:
        out: list[Any] = []
        strides: list = []
        if f.is_view or (len(f.written_returns) < f.num_returns and not lies_by_shape(f, call.tensors, kwargs)):
            strides = strides_of(f.func, *flatten(args, kwargs))
        for i, r in enumerate(results):
            if type(r) is Meta:
                box = RemoteBox(self, first, r, f.is_view)
                box.at = at
                box.strides = strides[i] if i < len(strides) else None
                if f.is_view:
                    box.base = args[0]._box.at, args[0]._box.base
                out.append(call.cls(box))
                first += 1
            else:
                out.append(r[0] if type(r) is tuple else call.tensors[r])
        if call.repeated and f.written_returns:  # several tensors of the program may have one number: the written ones are returned
            targets = f.written_by(args, kwargs)
            for i in f.written_returns[: len(out)]:
                out[i] = targets[i]
        return out[0] if kind is None else kind(out)

    # ---- the random stream, which belongs to this process

    def _random(self, f: _Function, plan: _Plan, call: _Call, args: tuple, kwargs: dict) -> tuple[bytes, int | None]:
        """Returns the random state before the operator, and a checksum of the state after it if this process can compute it. An empty state
        marks an operator that draws no numbers."""
        if not plan.draws:
            return b"", 0
        generator = torch.default_generator if call.generator is None else call.generator
        before = state_bytes(generator.get_state())
        if plan.results is None or not f.counted or any(t._box.is_view for t in call.tensors):
            return before, None
        args, kwargs = tree_map(lambda a: torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, Tensor) else a, (args, kwargs))
        f.func(*args, **kwargs)
        return before, zlib.crc32(state_bytes(generator.get_state()))

    # ---- values of the host

    def adopt(self, t: Tensor) -> RemoteBox:
        """Moves the value of a tensor of this process to the ranks, which hold it from now on."""
        old: Box = t._box
        box = self._put(old.array.gathered(), pace=False)
        if len(old.array.sharding.devices) == world().num_devices:
            box.lay(old.array.sharding)
            box.mark = old.mark
        t._box, box.strides = box, old.strides
        return box

    def uploaded(self, value: torch.Tensor) -> Tensor:
        box = self._put(value)
        box.strides = known_strides(value)
        return Tensor(box)

    def _put(self, value: torch.Tensor, pace: bool = True) -> RemoteBox:
        with self.lock:
            number = self._next
            self._next += 1
            self.add(("put", number, self.sent(value)))
            if pace:  # False between the arguments of an operator, which must be in one batch
                self.pace()
        return self._fresh(number, Meta.cached(value.shape, value.dtype))

    def _fresh(self, number: int, meta: Meta) -> RemoteBox:
        return RemoteBox(self, number, meta, sharding=Sharding.replicated(len(meta.shape), world().num_devices))

    def make(self, overload: Any, args: tuple, kwargs: dict) -> Tensor:
        """Runs a factory function whose values do not depend on the random stream."""
        like = overload(*args, **kwargs, device="meta")
        with self.lock:
            self._send_modes()
            number = self._next
            self._next += 1
            self.add(("make", number, str(overload), args, kwargs))
            self.pace()
        box = self._fresh(number, Meta.cached(like.shape, like.dtype))
        box.strides = known_strides(like)
        return Tensor(box)


def _on_host(value: Any) -> Any:
    return tree_map(lambda a: a._box.array.gathered() if isinstance(a, Tensor) else a, value)


def _without_values(value: Any) -> Any:
    return tree_map(lambda a: torch.empty(a.shape, dtype=a.dtype, device="meta") if isinstance(a, Tensor) else a, value)


def _modes_of_torch() -> tuple[torch.dtype, str, bool, bool]:
    return (
        torch.get_default_dtype(),
        torch._C._get_float32_matmul_precision(),
        torch._C._get_deterministic_algorithms(),
        torch._C._get_deterministic_algorithms_warn_only(),
    )


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


_CONSTANTS = {str, torch.dtype, torch.device, torch.layout, torch.memory_format}
_OURS = {Tensor, Parameter}


# ---- operators between host and device ------------------------------------------------------------------------------------------------


def _copy(recorder: Recorder, func, args, kwargs):
    to, of = args[0], args[1]
    if isinstance(to, Tensor):
        if not isinstance(of, Tensor) and of.dim() > 0:  # a host tensor of any dtype goes to the ranks first
            of = Tensor(recorder._put(of))
        return recorder.operator(func, (to, of, *args[2:]), kwargs)
    to.copy_(of._box.array.gathered())
    return to


def _to_copy(recorder: Recorder, func, args, kwargs):
    return recorder.operator(func, args, {k: v for k, v in kwargs.items() if k in ("dtype", "memory_format")})


def _item(recorder: Recorder, func, args, kwargs):
    t = args[0]
    if t.numel() != 1:
        return func(t._box.array.gathered())  # torch raises the error for a tensor with several elements
    return recorder.query(("item", t._box.number if type(t._box) is RemoteBox else recorder.adopt(t).number))


_SPECIAL: dict[Any, Callable] = {
    aten.copy_.default: _copy,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _item,
}
for _func, _run in SPECIAL.items():  # operators that this process runs, which then call recorded ones
    if _func not in _SPECIAL and _func is not aten.equal.default:
        _SPECIAL[_func] = lambda recorder, func, args, kwargs, run=_run: run(func, args, kwargs)
