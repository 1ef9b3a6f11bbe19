"""Puts each operator into the queue of the present stream. Its results are there at once, as poison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from late_device.memory import Memory

if TYPE_CHECKING:
    from late_device.device import LateDevice

_PLAIN = (torch.Tensor, torch.nn.Parameter)
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
        self.returns = schema.returns

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
        self._plans: dict[Any, _Plan] = {}
        self._shapes: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # DTensor infers placements
        if any(t not in _PLAIN for t in types):
            return NotImplemented
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = _Plan(func)
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        meta = any(t.is_meta for t in tensors) or kwargs.get("device") in ("meta", torch.device("meta"))
        if meta or plan.now or not (tensors or plan.tensors):
            return func(*args, **kwargs)
        if plan.collective:
            return self._collective(plan, func, args, kwargs, tensors, leaves, spec)
        memories = [self._device.memory(t.untyped_storage()) for t in tensors]
        if tensors and all(m.host for m in memories):
            return func(*args, **kwargs)
        given = dict(zip(plan.names, args, strict=False)) | kwargs
        written = self._memories([given.get(n) for n in plan.written])
        read = [m for m in memories if m not in written]
        if plan.random and not tensors:
            return self._drawn(plan, func, args, kwargs)
        if plan.host or plan.random or plan.functional_collective:
            return self._at_once(plan, func, args, kwargs, read, written)
        outs, results = self._outputs(plan, func, leaves, spec, given)
        fresh = [t for t in outs if t is not None]
        run = self._later(func, leaves, spec, fresh if not plan.returned or None in plan.returned else [], plan)
        self._device.issue(plan.name, read, written + self._memories(fresh), run)
        return results

    def _memories(self, tree: Any) -> list[Memory]:
        found = [self._device.memory(t.untyped_storage()) for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]
        return list(dict.fromkeys(found))

    # ---- results ----

    def _outputs(self, plan: _Plan, func: Any, leaves: list, spec: Any, given: dict) -> tuple[list[torch.Tensor | None], Any]:
        """Returns the new tensors, and what the operator returns."""
        if plan.returned and None not in plan.returned:
            same = tuple(given[n] for n in plan.returned)
            return [], same if len(same) > 1 else same[0]
        if not plan.returned:
            return [], None
        shapes, tree = self._shaped(func, leaves, spec)
        outs = [None if s is None else self._device.allocate(*s, plan.name) for s in shapes]
        results = tree_unflatten(outs, tree)
        if any(plan.returned):
            parts = zip(results, plan.returned, strict=True)
            results = tuple(out if name is None else given[name] for out, name in parts)
        return outs, results

    def _shaped(self, func: Any, leaves: list, spec: Any) -> tuple[list, Any]:
        key = (func, spec, *(_key(leaf) for leaf in leaves))
        try:
            known = self._shapes.get(key)
        except TypeError:
            key, known = None, None
        if known is None:
            # Not on the meta device, where some results have other dtypes than on the CPU.
            with self._device.raw():
                args, kwargs = tree_unflatten([_zeros(leaf) for leaf in leaves], spec)
                outs, tree = tree_flatten(func(*args, **kwargs))
            known = [None if t is None else (tuple(t.shape), t.stride(), t.dtype) for t in outs], tree
            if key is not None:
                self._shapes[key] = known
        return known

    def _later(self, func: Any, leaves: list, spec: Any, fresh: list[torch.Tensor], plan: _Plan) -> Callable[[], None]:
        """The operator's run, on tensors of its own, because the program's may be dropped or changed until then."""
        if plan.empty:
            return lambda: None
        args, kwargs = tree_unflatten([self._inner(t, plan) if isinstance(t, torch.Tensor) else t for t in leaves], spec)
        into = [self._inner(t, plan) for t in fresh]

        def run() -> None:
            results = [t for t in tree_flatten(func(*args, **kwargs))[0] if t is not None]
            for out, result in zip(into, results, strict=False) if into else ():
                out.copy_(result)

        return run

    def _inner(self, t: torch.Tensor, plan: _Plan) -> torch.Tensor:
        storage = t.untyped_storage()
        m = self._device.memory(storage)
        if m.host and not plan.written:
            return t.detach().clone()  # a copy from the host takes its bytes at the call
        with self._device.raw():
            inner = torch.empty(0, dtype=t.dtype)
            return inner.set_(m.keep if m.owned else storage, t.storage_offset(), t.size(), t.stride())

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
        op = self._device.issue(plan.name, read, written, lambda: None, collective=plan.functional_collective)
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
                    m.host, m.name = False, f"a result of {plan.name}"
                    return t
                new = self._device.allocate(t.shape, t.stride(), t.dtype, plan.name)
                self._device.issue(plan.name, [], self._memories([new]), lambda: None)
                with self._device.raw():
                    new.copy_(t)
                return new
            return t

        return tree_map_only(torch.Tensor, adopted, result)

    def _collective(self, plan: _Plan, func: Any, args: tuple, kwargs: dict, tensors: list, leaves: list, spec: Any) -> Any:
        if plan.barrier:
            self._device.run_all()
            return func(*args, **kwargs)
        given = dict(zip(plan.names, args, strict=False)) | kwargs
        written = self._memories([given.get(n) for n in plan.written])
        read = [m for m in self._memories(tensors) if m not in written]
        if plan.peer:  # the program decides when it waits for its work
            self._device.run_through(self._device.issue(plan.name, read, written, lambda: None))
            return func(*args, **kwargs)
        inner, named = tree_unflatten([self._inner(t, plan) if isinstance(t, torch.Tensor) else t for t in leaves], spec)

        def run() -> None:
            result = func(*inner, **named)
            work = result[-1] if isinstance(result, tuple) else result
            work.wait()

        self._device.issue(plan.name, read, written, run, collective=True)
        work = FakeWork().boxed()
        values = [given[n] for n in plan.written]
        return work if len(plan.returns) == 1 else (values[0], work)


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return "tensor", tuple(leaf.shape), leaf.stride(), leaf.dtype
    return type(leaf), leaf


def _zeros(leaf: Any) -> Any:
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype).zero_() if isinstance(leaf, torch.Tensor) else leaf
