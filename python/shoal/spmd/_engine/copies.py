"""Operators between host and device, and those that make no new value."""

from __future__ import annotations

import torch

from shoal.spmd._engine import execution
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.host_tensors import of_two_devices
from shoal.spmd._engine.operator import flatten
from shoal.spmd._engine.strides import strides_of
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._layout.processes import world

aten = torch.ops.aten


def _copy(func, args, kwargs):
    to, of = args[0], args[1]
    if isinstance(to, Tensor):
        to._box.before_write()
    if isinstance(to, Tensor) and isinstance(of, Tensor):
        array = to._box.array
        source = of._box.array
        if source.shape == array.shape and source.sharding == array.sharding:
            for position, local in array.locals.items():
                local.copy_(source.locals[position])
        else:
            array.write(source.gathered("copy_").expand(array.shape))
        to._box.wrote()
    elif isinstance(to, Tensor):
        world().verify_tensor(of)
        to._box.array.write(of.expand(to.shape))
        to._box.wrote()
    else:
        to.copy_(of._box.array.gathered())
    return to


def _to_copy(func, args, kwargs):
    """Converts dtype or memory format on the device. The device argument is ignored: .float(), .type_as and autograd name the CPU there,
    and ``Tensor.to`` makes copies on the host."""
    (t,) = args
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "non_blocking", "layout")}
    cls = getattr(type(t), "result", Tensor)
    box = Box(execution.run(func, (t._box.array,), kwargs).values[0])
    if t._box.strides is not None or kwargs.get("memory_format") is not None:
        (box.strides,) = strides_of(func, *flatten(args, kwargs))
    return cls(box)


def _same(func, args, kwargs):
    """Returns another wrapper of the same value, with the same mark and layout. torch.nn.Parameter calls it."""
    (t,) = args
    return getattr(type(t), "result", Tensor)(t._box)


def _item(func, args, kwargs):
    return func(args[0]._box.array.gathered())


def _equal(func, args, kwargs):
    for x in args:
        if not isinstance(x, Tensor) and x.dim():  # torch's C++ code compares with zero-dimensional host tensors
            raise of_two_devices(func, x)
    a, b = (x._box.array.gathered() if isinstance(x, Tensor) else x for x in args)
    return torch.equal(a, b)


SPECIAL = {
    aten.copy_.default: _copy,
    aten._to_copy.default: _to_copy,
    aten._local_scalar_dense.default: _item,
    aten.equal.default: _equal,
    aten.detach.default: _same,
    aten.alias.default: _same,
}
