"""Runs an operator on arrays: part by part if a rule allows it, otherwise on whole tensors."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.spmd._engine.operator import Form, Operator, flatten, operator_of, unflatten
from shoal.spmd._layout import processes as _world
from shoal.spmd._layout import traffic
from shoal.spmd._layout.array import Array, note
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding, parts_of
from shoal.spmd._rules import registry
from shoal.spmd._rules.registry import COMBINED, Grid, Plan, Steps

_replicated: Counter[str] = Counter()
# Views that only set a bit of the tensor (conjugate, negative), and the operators that compute values in their place: below torch's
# dispatcher, operators ignore the bit.
RESOLVED = {
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,
    torch.ops.aten._neg_view.default: torch.ops.aten.neg.default,
}


def replicated_ops() -> dict[str, int]:
    """Returns, by operator without a rule for sharded tensors, how often it ran on whole tensors."""
    if _world.controller is not None:
        return _world.controller.query(("replicated",))
    return dict(_replicated)


def forget_replicated_ops() -> None:
    _replicated.clear()
    if _world.controller is not None:
        _world.controller.add(("forget_replicated",))


class Result:
    """The results of an operator. ``values``: per result an Array, or another value. ``aliases``: local results are views of local
    arguments. ``origins``: for each part of the result, by position, the position of the first argument's part from which it came. It is
    None if arguments were resharded, or if the operator ran by steps."""

    def __init__(self, values: list[Any], aliases: bool, as_list: bool, origins: dict[int, int] | None = None):
        self.values, self.aliases, self.as_list, self.origins = values, aliases, as_list, origins


@dataclass
class Cell:
    """One part of an operator's work: positions of the parts that it reads and makes, per argument and result."""

    inputs: list[int]
    outputs: list[int | None]
    size: list[int] | None  # local size of the result, for operators that take it as an argument


@dataclass
class Sum:
    """The combination of cells' results by ``combine``. ``order``: for each position that this process holds, the cells to combine, in
    order. A cell is (process, index): the index counts the results that the process sends to this one, or this process's own cells.
    ``sends``: by receiving process, the indices of this process's cells that it needs."""

    order: dict[int, list[tuple[int, int]]]
    sends: list[list[int]]
    receives: list[list[int]]  # by sending process: the positions for which this process gets its results
    of_all: bool  # each process has one cell, in the order of processes, and all get the sum
    combine: str


@dataclass
class Output:
    sharding: Sharding
    shape: tuple[int, ...]
    sum: Sum | None
    summands: int  # number of cells that are combined into a part


@dataclass
class Prepared:
    """The plan of running an operator on arguments with given shardings. If ``cells`` is None, the operator runs on whole
    tensors, or by ``steps``."""

    inputs: list[Sharding]
    cells: list[Cell] | None
    outputs: list[Output | None]
    size_argument: int | None
    steps: Steps | None = None


def run(func: Any, args: tuple, kwargs: dict, written: Sequence[Array] = ()) -> Result:
    """Runs an operator on Arrays. Those in ``written`` are changed in place and keep their sharding."""
    return run_flat(func, *flatten(args, kwargs), written)


def run_flat(func: Any, flat: list[Any], form: Form, written: Sequence[Array] = ()) -> Result:
    """As ``run``, for arguments that ``flatten`` has made."""
    func = RESOLVED.get(func, func)
    op = operator_of(func)
    where = [i for i, a in enumerate(flat) if type(a) is Array]
    arrays = [flat[i] for i in where]
    if op.random and registry.find(func) is None:
        world().verify_stream(str(func), unflatten(flat, form)[1].get("generator"))
    if all(a.sharding.is_replicated for a in arrays):
        return _annotated(_whole(func, op, flat, form, where, arrays), func, flat, arrays)
    targets = [i for i, a in enumerate(arrays) if any(a is w for w in written)] if written else []
    if op.is_fused and unflatten(flat, form)[1].get("grad_scale") is None:
        targets = [i for i in targets if i != 1]  # without grad_scale, a fused optimizer only reads gradients
    prepared = _prepared(func, flat, form, arrays, targets)
    if prepared.steps is not None:
        moves: list[tuple[str, int]] = []

        def step(func: Any, *args: Any, **kwargs: Any) -> Any:
            outputs = _op(func, *args, **kwargs)
            for a in outputs if isinstance(outputs, list) else [outputs]:
                moves.extend(a.origin[2] if isinstance(a, Array) and a.origin else ())
            return outputs

        args, kwargs = unflatten(flat, form)
        values = prepared.steps.run(step, *prepared.steps.given, *args, **kwargs)
        _came_from(values, traffic.origin(op.qualified_name, tuple(moves)))
        return Result(values, False, len(values) != 1 or isinstance(func._schema.returns[0].type, torch.ListType))
    if prepared.cells is None:
        if prepared.size_argument is None and not op.random:
            _count_replicated(func)
        return _replicate(func, op, flat, form, where, arrays, written)
    return _annotated(_by_parts(func, op, flat, form, where, arrays, prepared), func, flat, arrays)


def _annotated(result: Result, func: Any, flat: list[Any], arrays: list[Array]) -> Result:
    """Marks results as yielding if all arguments yield (such as a transposed parameter), and sets the memory order of transposed views."""
    if arrays and all(a.yields for a in arrays):
        for v in result.values:
            if isinstance(v, Array):
                v.yields = True
    if func in _TRANSPOSING:
        dims = list(range(len(arrays[0].shape)))
        if func is torch.ops.aten.permute.default:
            dims = [d % len(dims) for d in flat[1:]]
        elif dims:
            i, j = flat[1:3] if func is torch.ops.aten.transpose.int else (0, -1)
            dims[i], dims[j] = dims[j], dims[i]
        result.values[0].order = tuple(dims.index(d) for d in arrays[0].order or range(len(dims)))
    return result


_TRANSPOSING = {torch.ops.aten.t.default, torch.ops.aten.transpose.int, torch.ops.aten.permute.default}


def _op(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs one step of an operator that consists of steps."""
    first = func._schema.arguments[0].alias_info
    result = run(func, args, kwargs, [args[0]] if first is not None and first.is_write else [])
    return result.values if result.as_list else result.values[0]


_known: OrderedDict[Any, Prepared] = OrderedDict()
_MOST_KNOWN = 8192


def _prepared(func: Any, flat: list[Any], form: Form, arrays: list[Array], targets: list[int]) -> Prepared:
    """Returns the plan of an operator. It depends on shapes, dtypes, shardings and constants except floats, and is cached across steps."""
    ignored = torch.Tensor if registry.reads_floats(func) else (float, torch.Tensor)
    parts: list[Any] = [func, form, *targets]
    for a in flat:
        kind = type(a)
        if kind is Array:
            parts += (Array, a.shape, a.dtype, a.sharding, a.yields)
        elif isinstance(a, ignored):
            parts.append(kind)
        else:
            parts += (kind, a)
    key = tuple(parts)
    try:
        found = _known.get(key)
    except TypeError:  # a constant among the arguments cannot be hashed
        return _prepare(func, flat, form, arrays, targets)
    if found is None:
        found = _known[key] = _prepare(func, flat, form, arrays, targets)
        if len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return found


_WHOLE = Prepared([], None, [], None)
_CHOSEN_WHOLE = Prepared([], None, [], 0)  # a rule exists, but does not fit the written arrays


def laid_out(func: Any, arrays: list[Array], args: tuple, kwargs: dict, targets: Sequence[int]) -> tuple[Plan | Steps | None, Grid | None]:
    """Returns the rule's plan and the grid of parts. ``targets``: positions of written arrays. Without a plan there is no rule. Without a
    grid the rule does not fit the written arrays, or has steps."""
    found = registry.find(func)
    plan = None if found is None else found(func, arrays, args, kwargs)
    if plan is None or isinstance(plan, Steps):
        return plan, None
    by_size = sorted(range(len(arrays)), key=lambda i: (arrays[i].yields, -_count(arrays[i].shape)))
    inside_out = {label for labels in plan.outputs for label in labels or () if label is not None}

    def allowed(label: Any) -> bool:
        return label in inside_out or plan.combine is not None

    n = world().num_devices
    grid = registry.grid_of(plan, arrays, n, [*targets, *(i for i in by_size if i not in targets)], allowed, len(targets))
    return plan, None if any(grid.sharding(plan.inputs[i]) != arrays[i].sharding for i in targets) else grid


def _prepare(func: Any, flat: list[Any], form: Form, arrays: list[Array], targets: list[int]) -> Prepared:
    plan, grid = laid_out(func, arrays, *unflatten(flat, form), targets)
    if isinstance(plan, Steps):
        return Prepared([], None, [], None, plan)
    if plan is None or grid is None:
        return _WHOLE if plan is None else _CHOSEN_WHOLE
    inputs = [grid.sharding(labels) for labels in plan.inputs]
    all_cells = grid.cells()
    holders = [sorted({world().process_of(d) for d in grid.devices(c)}) for c in all_cells]
    mine = [i for i, processes in enumerate(holders) if world().rank in processes]
    cells = []
    for i in mine:
        size = None
        if plan.size_argument is not None:
            labels = plan.outputs[0] or ()
            size = registry.local_shape(plan.out_shapes[0], grid.sharding(labels), grid.position(labels, all_cells[i]))
        cells.append(Cell([grid.position(labels, all_cells[i]) for labels in plan.inputs], [], size))
    outputs: list[Output | None] = []
    for k, labels in enumerate(plan.outputs):
        if labels is None:
            outputs.append(None)
            for cell in cells:
                cell.outputs.append(None)
            continue
        at = [grid.position(labels, c) for c in all_cells]
        for cell, i in zip(cells, mine, strict=True):
            cell.outputs.append(at[i])
        sharding = grid.sharding(labels)
        sum_ = None
        if len(set(at)) != len(at):
            assert plan.combine is not None, f"the rule of {func} does not state how parts of result {k} are combined"
            sum_ = _sum_of(at, holders, mine, sharding, plan.combine)
        outputs.append(Output(sharding, _out_sizes(plan, k, arrays), sum_, len(at) // len(set(at))))
    return Prepared(inputs, cells, outputs, plan.size_argument)


def _out_sizes(plan: Plan, k: int, arrays: Sequence[Array]) -> tuple[int | None, ...]:
    """Returns the sizes of a result's dimensions, by their labels. ``None`` stands for the local result's size, of a whole dimension."""
    labels = plan.outputs[k] or ()
    if k < len(plan.out_shapes):
        return tuple(plan.out_shapes[k])
    sizes = {label: n for ls, a in zip(plan.inputs, arrays, strict=True) for label, n in zip(ls, a.shape, strict=True)}
    return tuple(None if label is None else sizes.get(label) for label in labels)


def _sum_of(at: list[int], holders: list[list[int]], mine: list[int], sharding: Sharding, combine: str) -> Sum:
    w = world()
    sends: list[list[int]] = [[] for _ in range(w.num_processes)]
    receives: list[list[int]] = [[] for _ in range(w.num_processes)]
    order: dict[int, list[tuple[int, int]]] = {}
    for position in range(_count(sharding.parts)):
        cells = [i for i, p in enumerate(at) if p == position]
        for receiver in sorted({w.process_of(d) for d in sharding.holders(position)}):
            for i in cells:
                sender = receiver if receiver in holders[i] else holders[i][receiver % len(holders[i])]
                if receiver == w.rank:
                    order.setdefault(position, []).append((sender, mine.index(i) if sender == w.rank else len(receives[sender])))
                    if sender != w.rank:
                        receives[sender].append(position)
                elif sender == w.rank:
                    sends[receiver].append(mine.index(i))
    of_all = combine == "sum" and w.num_processes > 1 and set(at) == {0} and holders == [[p] for p in range(w.num_processes)]
    return Sum(order, sends, receives, of_all, combine)


def _count_replicated(func: Any) -> None:
    name = str(func)
    _replicated[name] += 1
    if _replicated[name] == 1:
        warnings.warn(f"shoal.spmd: {name} has no rule for sharded tensors and runs on whole ones", stacklevel=6)


# Views that fail where a part's memory has gaps, although they work on the whole tensor.
VIEWS = {"view", "_unsafe_view", "_reshape_alias"}
# Kernels that read memory directly. torch copies their arguments to contiguous memory only if the tensors report other strides.
CONTIGUOUS = {
    "native_group_norm", "native_group_norm_backward", "_scaled_dot_product_flash_attention_for_cpu", "_pdist_forward", "_pdist_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_weight_norm_interface", "_weight_norm_interface_backward",
    "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex",
}  # fmt: skip


# Kernels that factor the transposed matrix if a matrix is contiguous. Their backward formulas ask the program's tensor whether it is
# contiguous, so local matrices must have its memory order.
FACTORED = {"_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"}
_transposed = False


@contextlib.contextmanager
def transposed_matrices() -> Iterator[None]:
    """Within the ``with`` block, operators in FACTORED get matrices that are not contiguous."""
    global _transposed
    _transposed = True
    try:
        yield
    finally:
        _transposed = False


def called(func: Any, op: Operator, flat: list[Any], form: Form) -> tuple[list[Any], bool]:
    """Runs an operator on local tensors, laid out as its kernel needs them. Returns its results, and True if they came as a list."""
    name, strided = op.name, []
    if op.is_fused or name in CONTIGUOUS:
        strided = [(i, a) for i, a in enumerate(flat) if isinstance(a, torch.Tensor) and not a.is_contiguous()]
        flat = list(flat)
        for i, a in strided:
            flat[i] = a.contiguous()
        if _transposed and name in FACTORED:
            flat[0] = flat[0].mT.contiguous().mT
    args, kwargs = unflatten(flat, form)
    is_complex = any(isinstance(a, torch.Tensor) and a.is_complex() for a in flat)
    try:
        if is_complex:
            with _with_conjugates():
                out = func(*args, **kwargs)
        else:
            out = func(*args, **kwargs)
    except RuntimeError as error:
        if name not in VIEWS or "view size is not compatible" not in str(error):
            raise
        out = torch.ops.aten.reshape.default(*args, **kwargs)
    if name not in CONTIGUOUS:
        for i, a in strided:
            a.copy_(flat[i])
    as_list = isinstance(out, (tuple, list))
    values = list(out) if as_list else [out]
    if is_complex:
        values = [v.resolve_conj().resolve_neg() if isinstance(v, torch.Tensor) else v for v in values]
    return values, as_list


@contextlib.contextmanager
def _with_conjugates():
    """Within the ``with`` block operators resolve lazy conjugates and negatives: below a subclass, torch's dispatcher excludes the keys for
    that."""
    keys = torch._C.DispatchKey
    with torch._C._SetExcludeDispatchKeyGuard(keys.Conjugate, False), torch._C._SetExcludeDispatchKeyGuard(keys.Negative, False):
        yield


def _shares(a: Any, b: torch.Tensor) -> bool:
    return isinstance(a, torch.Tensor) and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _whole(func: Any, op: Operator, flat: list[Any], form: Form, where: list[int], arrays: list[Array]) -> Result:
    flat = list(flat)
    for i, a in zip(where, arrays, strict=True):
        flat[i] = a.locals[0]
    values, as_list = called(func, op, flat, form)
    n = world().num_devices
    aliases = bool(arrays) and all(_shares(v, arrays[0].locals[0]) for v in values)
    arrays_out = [Array.whole(v, n) if isinstance(v, torch.Tensor) else v for v in values]
    if aliases and arrays[0].origin is not None:  # the results are in the first argument's memory
        _came_from(arrays_out, arrays[0].origin)
    return Result(arrays_out, aliases, as_list, {0: 0})


def _replicate(
    func: Any, op: Operator, flat: list[Any], form: Form, where: list[int], arrays: list[Array], written: Sequence[Array]
) -> Result:
    name = str(func)
    laid = [a.resharded(Sharding.replicated(len(a.shape), world().num_devices), name) for a in arrays]
    whole = [Array.whole(a.locals[0], world().num_devices) for a in laid]
    result = _whole(func, op, flat, form, where, whole)
    for a, w in zip(arrays, whole, strict=True):
        if any(a is target for target in written) and not a.sharding.is_replicated:
            a.write(w.locals[0])
    result.aliases, result.origins = False, None
    _came_from(result.values, traffic.origin(name, _moved(laid, arrays)))
    return result


def _moved(laid: list[Array], arrays: list[Array]) -> traffic.Moves:
    return tuple(m for a, b in zip(laid, arrays, strict=True) if a is not b for m in a.origin[2])


def _came_from(values: list[Any], origin: traffic.Origin) -> None:
    for value in values:
        if isinstance(value, Array):
            value.origin = origin


def _by_parts(func: Any, op: Operator, flat: list[Any], form: Form, where: list[int], arrays: list[Array], prepared: Prepared) -> Result:
    name = op.qualified_name
    lying = [a.resharded(s, name) for a, s in zip(arrays, prepared.inputs, strict=True)]
    same = all(a is b for a, b in zip(lying, arrays, strict=True))
    origin = traffic.origin(name, () if same else _moved(lying, arrays))
    per_cell: list[list[Any]] = []
    as_list = False
    for cell in prepared.cells:
        local = list(flat)
        for i, a, position in zip(where, lying, cell.inputs, strict=True):
            local[i] = a.locals[position]
        of = form
        if cell.size is not None:
            args, kwargs = unflatten(local, form)
            at = prepared.size_argument
            size = cell.size if isinstance(args[at], (list, tuple)) else cell.size[0]
            local, of = flatten((*args[:at], size, *args[at + 1 :]), kwargs)
        values, as_list = called(func, op, local, of)
        per_cell.append(values)
    count = len(per_cell[0])
    outputs = prepared.outputs if len(prepared.outputs) == count else [prepared.outputs[0]] * count
    results = []
    for k, output in enumerate(outputs):
        values = [values[k] for values in per_cell]
        positions = [cell.outputs[k if len(cell.outputs) == count else 0] for cell in prepared.cells]
        results.append(values[0] if not isinstance(values[0], torch.Tensor) else _joined(values, positions, output, origin))
    first = prepared.cells[0]
    origins = {cell.outputs[0]: cell.inputs[0] for cell in prepared.cells} if same and first.outputs and first.inputs else None
    aliases = same and all(
        _shares(v, lying[0].locals[cell.inputs[0]]) for cell, values in zip(prepared.cells, per_cell, strict=True) for v in values
    )
    return Result(results, aliases, as_list, origins)


def _joined(values: list[torch.Tensor], positions: list[int], output: Output, origin: traffic.Origin) -> Array:
    local = values[0].shape
    assert len(local) == len(output.shape), f"a rule states {len(output.shape)} dimensions for a local result of shape {tuple(local)}"
    shape = tuple(n if n is not None else local[d] for d, n in enumerate(output.shape))
    if output.sum is None:
        parts = dict(zip(positions, values, strict=True))
    else:
        name, stack, moves = origin
        parts = _summed(values, output.sum, parts_of(shape, output.sharding), name)
        elements = traffic.summed(_count(output.sharding.tile(shape)), output.summands)
        moved = traffic.count(name, "all_reduce", round(world().num_devices * elements * values[0].dtype.itemsize))
        origin = name, stack, moves + moved
    array = Array(shape, values[0].dtype, output.sharding, parts)
    array.origin = origin
    return array


def _summed(values: list[torch.Tensor], how: Sum, cuts: Sequence[tuple[slice, ...]], name: str) -> dict[int, torch.Tensor]:
    """Combines cells in their order, so that the result does not depend on the process that computes it; half precision adds in float32."""
    w = world()
    note(f"{name} adds up over the devices")
    if how.of_all:
        return {0: w.all_reduce(values[0].contiguous(), name)}  # the memory of values[0] may be overwritten: nothing else uses it
    received: list[list[torch.Tensor]] = [[] for _ in how.receives]
    if w.num_processes > 1:
        expected = [[tuple(c.stop - c.start for c in cuts[position]) for position in positions] for positions in how.receives]
        received = w.travel([[values[i] for i in cells] for cells in how.sends], expected, values[0].dtype, name)
    parts = {}
    for position, cells in how.order.items():
        found = [values[i] if sender == w.rank else received[sender][i] for sender, i in cells]
        wide = torch.float32 if found[0].dtype in (torch.bfloat16, torch.float16) else found[0].dtype
        total = found[0].to(wide)
        for value in found[1:]:
            total = COMBINED[how.combine](total, value.to(wide))
        parts[position] = total.to(found[0].dtype)
    return parts


def _count(parts: Sequence[int]) -> int:
    n = 1
    for p in parts:
        n *= p
    return n
