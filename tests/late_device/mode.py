"""Puts each operator into the queue of the present stream. Its results are there at once, as poison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from late_device.memory import Memory

if TYPE_CHECKING:
    from late_device.device import LateDevice

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_META = ("meta", torch.device("meta"))
_EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided", "aten::empty_permuted")
# They change what a tensor is, not values.
_METADATA = ("set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "resize_", "resize_as_", "detach_", "swapaxes_")
_OVERWRITTEN = ("allreduce_", "broadcast_", "reduce_", "recv_", "recv_any_source_", "allreduce_coalesced_")


class _Plan:
    """An operator, as its schema describes it."""

    def __init__(self, func: Any):
        schema = func._schema
        self.name = schema.name.removeprefix("aten::")
        space = schema.name.split("::")[0]
        self.collective = space == "c10d"
        self.barrier = schema.name in ("c10d::barrier", "c10d::monitored_barrier_")
        self.peer = schema.name in ("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
        self.functional_collective = space in ("_c10d_functional", "_c10d_functional_autograd")
        self.empty = schema.name in _EMPTY
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        kinds = [str(r.type) for r in schema.returns]
        dynamic = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
        self.host = not self.collective and (dynamic or any("Tensor" not in kind for kind in kinds))
        self.tensors = any("Tensor" in kind for kind in kinds)
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        self.now = views or self.name in _METADATA or self.name in ("_unsafe_view", "lift_fresh", "_reshape_alias")
        self.names = [a.name for a in schema.arguments]
        self.written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if self.collective:
            own = self.name.removeprefix("c10d::") in _OVERWRITTEN
            self.written = [n for n in self.names if n.startswith("output") or (own and n.startswith("tensor"))]
        self.returned = [self._same(schema, r) for r in schema.returns]
        self.makes = None in self.returned  # tensors of its own
        self.returns = schema.returns
        self._at = {name: i for i, name in enumerate(self.names)}

    def given(self, args: tuple, kwargs: dict, names: Sequence[str]) -> list[Any]:
        """Returns the arguments of these names."""
        return [args[at] if (at := self._at[n]) < len(args) else kwargs.get(n) for n in names]

    def _same(self, schema: Any, returned: Any) -> str | None:
        """The argument that a result is."""
        if returned.alias_info is None or not returned.alias_info.is_write:
            return None
        return next(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.before_set == returned.alias_info.before_set
        )


class LateMode(TorchDispatchMode):
    def __init__(self, device: LateDevice):
        super().__init__()
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # no test traces this mode, and the wrapper against it costs more than most operators here

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # DTensor infers placements
        for t in types:
            if t not in _PLAIN:
                return NotImplemented
        plan = _plans.get(func)
        if plan is None:
            plan = _plans[func] = _Plan(func)
        if plan.now:
            return func(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        _find_tensors(args, tensors)
        if kwargs:
            _find_tensors(kwargs.values(), tensors)
        if not (tensors or plan.tensors) or kwargs.get("device") in _META or any(t.is_meta for t in tensors):
            return func(*args, **kwargs)
        if plan.collective:
            return self._collective(plan, func, args, kwargs, tensors)
        memories = [self._device.memory(t.untyped_storage()) for t in tensors]
        for m in memories:
            if not m.host:
                break
        else:
            if tensors:
                return func(*args, **kwargs)
        written = self._memories(plan.given(args, kwargs, plan.written)) if plan.written else []
        read = [m for m in memories if m not in written] if written else memories
        if plan.random and not tensors:
            return self._drawn(plan, func, args, kwargs)
        if plan.host or plan.random or plan.functional_collective:
            return self._at_once(plan, func, args, kwargs, read, written)
        outs, results = self._outputs(plan, func, args, kwargs)
        fresh = [t for t in outs if t is not None]
        run = self._later(func, args, kwargs, fresh if plan.makes else [], plan)
        self._device.issue(plan.name, read, written + self._memories(fresh) if fresh else written, run)
        return results

    def _memories(self, values: Iterable[Any]) -> list[Memory]:
        tensors: list[torch.Tensor] = []
        _find_tensors(values, tensors)
        return list(dict.fromkeys([self._device.memory(t.untyped_storage()) for t in tensors]))

    # ---- results ----

    def _outputs(self, plan: _Plan, func: Any, args: tuple, kwargs: dict) -> tuple[list[torch.Tensor | None], Any]:
        """Returns the new tensors, and what the operator returns."""
        if not plan.makes:
            same = plan.given(args, kwargs, plan.returned)
            return [], (tuple(same) if len(same) > 1 else same[0]) if same else None
        shapes, tree = self._shaped(func, args, kwargs)
        outs = [None if s is None else self._device.allocate(*s, plan.name) for s in shapes]
        results = tree_unflatten(outs, tree)
        if any(plan.returned):
            parts = zip(results, plan.returned, strict=True)
            results = tuple(out if name is None else plan.given(args, kwargs, [name])[0] for out, name in parts)
        return outs, results

    def _shaped(self, func: Any, args: tuple, kwargs: dict) -> tuple[list, Any]:
        key = (func, _key(args), _key(tuple(kwargs.items())))
        try:
            known = _shapes.get(key)
        except TypeError:
            key, known = None, None
        if known is None:
            # Not on the meta device, where some results have other dtypes than on the CPU.
            with self._device.raw():
                outs, tree = tree_flatten(func(*_mapped(_zeros, args), **{n: _mapped(_zeros, value) for n, value in kwargs.items()}))
            known = [None if t is None else (tuple(t.shape), t.stride(), t.dtype) for t in outs], tree
            if key is not None:
                _shapes[key] = known
        return known

    def _later(self, func: Any, args: tuple, kwargs: dict, fresh: list[torch.Tensor], plan: _Plan) -> Callable[[], None]:
        """The operator's run, on tensors of its own, because the program's may be dropped or changed until then."""
        if plan.empty:
            return _nothing
        args, kwargs = self._inners(args, kwargs, plan)
        if not fresh:

            def run() -> None:
                func(*args, **kwargs)

        elif len(fresh) == 1:
            into = self._inner(fresh[0], plan)

            def run() -> None:
                result = func(*args, **kwargs)
                into.copy_(result if isinstance(result, torch.Tensor) else next(t for t in tree_flatten(result)[0] if t is not None))

        else:
            all_into = [self._inner(t, plan) for t in fresh]

            def run() -> None:
                results = [t for t in tree_flatten(func(*args, **kwargs))[0] if t is not None]
                for out, result in zip(all_into, results, strict=False):
                    out.copy_(result)

        return run

    def _inners(self, args: tuple, kwargs: dict, plan: _Plan) -> tuple[tuple, dict]:
        def inner(t: torch.Tensor) -> torch.Tensor:
            return self._inner(t, plan)

        return _mapped(inner, args), {name: _mapped(inner, value) for name, value in kwargs.items()} if kwargs else kwargs

    def _inner(self, t: torch.Tensor, plan: _Plan) -> torch.Tensor:
        storage = t.untyped_storage()
        m = self._device.memory(storage)
        if m.host and not plan.written:
            return t.detach().clone()  # a copy from the host takes its bytes at the call
        if torch.is_inference_mode_enabled():
            with self._device.raw():
                return torch.empty(0, dtype=t.dtype).set_(m.keep if m.owned else storage, t.storage_offset(), t.size(), t.stride())
        return torch.empty(0, dtype=t.dtype).set_(m.keep if m.owned else storage, t.storage_offset(), t.size(), t.stride())

    # ---- operators that cannot wait ----

    def _drawn(self, plan: _Plan, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
        """Random numbers are drawn at the call, because the program may set their generator's state later. The stream gets them late."""
        drawn = func(*args, **kwargs)
        out = self._device.allocate(drawn.shape, drawn.stride(), drawn.dtype, plan.name)
        into = self._inner(out, plan)
        self._device.issue(plan.name, [], self._memories([out]), lambda: into.copy_(drawn))
        return out

    def _at_once(self, plan: _Plan, func: Any, args: tuple, kwargs: dict, read: list[Memory], written: list[Memory]) -> Any:
        """Runs what is before it, and then itself. The host waits for results that are not tensors, or whose size depends on values."""
        op = self._device.issue(plan.name, read, written, _nothing, collective=plan.functional_collective)
        self._device.run_through(op)
        if plan.host:
            self._device.synchronize()
        result = func(*args, **kwargs)
        if plan.host:
            return result

        def adopted(t: torch.Tensor) -> torch.Tensor:
            m = self._device.memory(t.untyped_storage())
            if m.host and m not in written and m not in read:
                if plan.functional_collective:
                    m.host, m.describe = False, lambda: f"a result of {plan.name}"
                    return t
                new = self._device.allocate(t.shape, t.stride(), t.dtype, plan.name)
                self._device.issue(plan.name, [], self._memories([new]), _nothing)
                with self._device.raw():
                    new.copy_(t)
                return new
            return t

        return tree_map_only(torch.Tensor, adopted, result)

    def _collective(self, plan: _Plan, func: Any, args: tuple, kwargs: dict, tensors: list) -> Any:
        if plan.barrier:
            self._device.run_all()
            return func(*args, **kwargs)
        values = plan.given(args, kwargs, plan.written)
        written = self._memories(values)
        read = [m for m in self._memories(tensors) if m not in written]
        if plan.peer:  # the program decides when it waits for its work
            self._device.run_through(self._device.issue(plan.name, read, written, _nothing))
            return func(*args, **kwargs)
        inner, named = self._inners(args, kwargs, plan)

        def run() -> None:
            result = func(*inner, **named)
            work = result[-1] if isinstance(result, tuple) else result
            work.wait()

        self._device.issue(plan.name, read, written, run, collective=True)
        work = FakeWork().boxed()
        return work if len(plan.returns) == 1 else (values[0], work)


# Operators, and the shapes of their results, are the same on all devices.
_plans: dict[Any, _Plan] = {}
_shapes: dict[Any, Any] = {}


def _find_tensors(values: Iterable[Any], into: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            into.append(value)
        elif type(value) in (list, tuple):
            _find_tensors(value, into)


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """An argument of an operator with ``function`` of each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([_mapped(function, v) for v in value])
    return value


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if type(value) in (list, tuple):
        return tuple([_key(v) for v in value])
    return type(value), value


def _zeros(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).zero_()


def _nothing() -> None:
    pass
