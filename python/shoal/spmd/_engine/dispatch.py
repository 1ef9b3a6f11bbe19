"""Execution of an operator on the program's tensors: its arguments' arrays, its writes, and the tensors of its results."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.utils._pytree import tree_map

from shoal.exceptions import Unimplemented
from shoal.spmd._engine import execution
from shoal.spmd._engine.box import Box, strided
from shoal.spmd._engine.copies import SPECIAL
from shoal.spmd._engine.host_tensors import check_devices
from shoal.spmd._engine.lists import arrays_of, run_one_by_one, run_together, share_memory
from shoal.spmd._engine.operator import flatten, operator_of
from shoal.spmd._engine.strides import lies_by_shape, strides_of
from shoal.spmd._engine.tensor import Tensor, dispatch_by
from shoal.spmd._layout import processes
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._rules import registry

aten = torch.ops.aten
checks = True  # True: operators check their arguments' devices. False on the ranks of a controller, which has checked them

# By operator of a loss: the position of the argument with the target classes. Floats are converted, as in torch_xla; torch's kernels take
# integers only.
_CLASSES = {
    aten.nll_loss_forward.default: 1,
    aten.nll_loss2d_forward.default: 1,
    aten.nll_loss_backward.default: 2,
    aten.nll_loss2d_backward.default: 2,
}
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    if func.namespace in _COLLECTIVES:
        raise Unimplemented(
            f"{func} on a tensor of the device: SPMD moves shards itself and is not mixed with torch.distributed's collectives",
            hint="compute with the tensor: it is the global one on every process",
        )
    if processes.controller is not None:
        return processes.controller.dispatch(func, args, kwargs)
    special = SPECIAL.get(func)
    if special is not None:
        return special(func, args, kwargs)
    at = _CLASSES.get(func)
    if at is not None and args[at].is_floating_point():
        args = (*args[:at], args[at].long(), *args[at + 1 :])
    op = operator_of(func)
    if op.strided:
        _check_memory(func, args[0]._box)
    if consists_of_others(func):
        return func.decompose(*args, **kwargs)
    if op.reshapes:
        return reshaped(func, args, kwargs)
    flat, form = flatten(args, kwargs)
    tensors = [a for a in flat if isinstance(a, Tensor)]
    targets = op.written_by(args, kwargs)
    in_backward = torch._C._current_graph_task_id() != -1
    if not in_backward and checks:
        check_devices(func, args, flat, targets)
    if op.on_lists:
        shared, split = share_memory(targets), any(not t._box.array.sharding.is_replicated for t in tensors)
        out = run_together(func, args, kwargs, targets) if not shared and (split or not op.num_returns) else NotImplemented
        if out is not NotImplemented:
            return out
        if shared or split:
            return run_one_by_one(func, args, kwargs)
    cls = next((type(t).result for t in tensors if hasattr(type(t), "result")), Tensor)
    to_host = False
    if kwargs.get("device") is not None:
        to_host = torch.device(kwargs["device"]).type != DEVICE.type and not in_backward
        kwargs = {**kwargs, "device": torch.device("cpu")}
        flat, form = flatten(args, kwargs)
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    inner, written = arrays_of(flat, targets)
    if op.name in execution.FACTORED and isinstance(args[0], Tensor) and not args[0].is_contiguous():
        with execution.transposed_matrices():
            result = execution.run_flat(func, inner, form, written)
    else:
        result = execution.run_flat(func, inner, form, written)
    for t, array in zip(targets, written, strict=True):
        if array.sharding.is_replicated and array.locals[0].shape != t.shape:
            raise Unimplemented(
                f"{func} gives its out= tensor of shape {tuple(t.shape)} another shape", hint="pass one of the result's shape"
            )
    for box in dict.fromkeys(t._box for t in targets if isinstance(t, Tensor)):
        box.wrote()
    if to_host:
        return result.values[0].gathered()
    if op.is_view:
        base, strides = args[0]._box, strides_of(func, flat, form)
        rest = (args[1:], kwargs) if len(tensors) == 1 else (_plain(args[1:]), _plain(kwargs))
        out = []
        for i, v in enumerate(result.values):
            box = Box(v, base, (func, *rest, i), result.aliases, result.origins)
            box.strides = strides[i] if i < len(strides) else None
            out.append(cls(box))
    else:
        if len(op.written_returns) == op.num_returns or lies_by_shape(op, tensors, kwargs):
            out = [cls(Box(v)) if isinstance(v, Array) else v for v in result.values]
        else:
            strides = strides_of(func, flat, form)
            out = []
            for i, v in enumerate(result.values):
                out.append(cls(strided(Box(v), strides[i] if i < len(strides) else None)) if isinstance(v, Array) else v)
        for i in op.written_returns[: len(out)]:
            out[i] = targets[i]
    return out if result.as_list and op.num_returns == 1 else tuple(out) if result.as_list else out[0] if out else None


def _check_memory(func: Any, box: Box) -> None:
    """Raises Unimplemented for as_strided of a split view, unless the view has all elements of its base in the same order: the strides
    count in the base's memory, which lies on several devices."""
    array, base = box.array, box
    while base.base is not None:
        base = base.base
    same = math.prod(base.array.shape) == math.prod(array.shape) and all(t.is_contiguous() for t in array.locals.values())
    if not array.sharding.is_replicated and not same:
        raise Unimplemented(f"{func} of a view of a tensor that is split", hint="clone() it first, or use the view's own operators")


@functools.cache
def consists_of_others(func: Any) -> bool:
    """True for an operator without a rule that torch decomposes into others. It arrives here only in inference mode; otherwise autograd
    decomposes it."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd") and registry.find(func) is None


def reshaped(func: Any, args: tuple, kwargs: dict) -> Any:
    """Changes a tensor's shape in place: the tensor becomes a view of its former value."""
    t = args[0]
    if func is aten.detach_.default:
        return t
    packet = getattr(aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
    view = getattr(packet, "int" if packet is aten.transpose else func._overloadname, None)
    if view is None or not operator_of(view).is_view or view is aten.as_strided.default or t._box.mark is not None:
        raise Unimplemented(f"{func} changes the shape of a tensor of the device in place", hint="use the operator without the underscore")
    t._box = dispatch(view, args, kwargs)._box
    with torch._C._DisableTorchDispatch():  # sets shape and strides of the wrapper alone
        func(*args, **kwargs)
    return t


def _plain(value: Any) -> Any:
    return tree_map(lambda a: a._box.array.gathered() if isinstance(a, Tensor) else a, value)


dispatch_by(dispatch)
