"""Tensors on the logical device. A program sees ordinary tensors of device ``xla:0``; each has an Array of local tensors."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import _foreach_supported_types
from torch.utils._pytree import tree_map

from shoal.exceptions import Unimplemented
from shoal.spmd._engine import execution
from shoal.spmd._engine.operator import Form, Operator, flatten, operator_of, unflatten
from shoal.spmd._layout import processes, traffic
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.errors import located
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._rules import registry

aten = torch.ops.aten
# The reference count in dispatch() of a host tensor that torch's C++ code made for this call. A tensor of the program has more.
REFERENCES = 5
checks = True  # check devices of arguments; off on a controller's ranks, whose program checks them


class Box:
    """The value shared by tensors of one memory. A view's box refers to its base, and recomputes its array after a write to the base."""

    strides: tuple[int, ...] | None = None  # those of a plain tensor; None for a contiguous one

    def __init__(self, array: Array, base: Box | None = None, view: Any = None, aliases: bool = False, origins: dict | None = None):
        self._array, self.base, self._view, self._aliases, self._origins = array, base, view, aliases, origins
        self.mark: Sharding | None = None
        self._written = 0  # number of writes
        self._seen = 0 if base is None else base.written

    @property
    def written(self) -> int:
        self._refresh()
        return self._written

    @property
    def array(self) -> Array:
        if self.base is not None:
            self._refresh()
        return self._array

    def _refresh(self) -> None:
        if self.base is None or self._seen == self.base.written:
            return
        self._seen, self._written = self.base.written, self._written + 1
        func, args, kwargs, index = self._view
        result = execution.run(func, (self.base.array, *args), kwargs)
        self._array, self._aliases, self._origins = result.values[index], result.aliases, result.origins
        if self.mark is not None and self._array.sharding != self.mark:
            self._array, self._aliases, self._origins = self._array.resharded(self.mark), False, None

    @property
    def laid(self) -> tuple[Any, int]:
        """The origin of the layout (Array.origin), and the number of views on the way to it, which share memory with their bases."""
        box, views = self, 0
        array = box.array
        while box.base is not None and box._aliases and box.base.array.origin is not None:
            box, views = box.base, views + 1
            array = box.array
        return array.origin, views

    def lay(self, sharding: Sharding) -> None:
        """Reshards the value."""
        array = self.array
        if array.sharding != sharding:
            self.put(array.resharded(sharding))

    def let_yield(self) -> None:
        """Lets operators reshard the value to fit their other arguments."""
        self.array.yields = True

    def put(self, array: Array) -> None:
        """Replaces the layout of the value, which is not a write."""
        array.yields = self._array.yields
        self._array, self._aliases, self._origins = array, False, None
        self._written += 1  # views refer to the old memory

    def before_write(self) -> None:
        """Must be called before an operator changes the local tensors in place."""
        if self.base is not None:
            self.base.before_write()

    def wrote(self) -> None:
        """Must be called after the local tensors of the array were changed in place."""
        if self.base is None:
            self._written += 1
            return
        self.carry_over()
        self.touch()

    def touch(self) -> None:
        """Makes views of this value recompute their arrays at the next access."""
        if self.base is not None:
            self.base.touch()
            self._seen = self.base.written
        self._written += 1

    @property
    def is_written_locally(self) -> bool:
        """True if a write reaches the base's memory without communication."""
        return self.base is None or (self._origins is not None and self.base.is_written_locally)

    def carry_over(self) -> None:
        """Copies a write back to the base, where that has other memory."""
        if self.base is None:
            return
        if self._origins is not None:
            if not self._aliases:
                self._carry_over_by_parts(self._origins)
        else:
            func, args, kwargs, index = self._view
            below = self.base.array
            whole = below.gathered(str(func))
            if func in execution.RESOLVED:  # its own inverse
                whole.copy_(execution.RESOLVED[func](self._array.gathered(str(func))))
            else:
                part = func(whole, *args, **kwargs)
                (part[index] if isinstance(part, (tuple, list)) else part).copy_(self._array.gathered(str(func)))
            if not below.sharding.is_replicated:
                below.write(whole)
        self.base.carry_over()

    def _carry_over_by_parts(self, origins: dict[int, int]) -> None:
        """Copies the elements of a local copy (which reshape makes of memory with gaps) back to their origin. Processes do not communicate,
        because memory may have gaps on some of them only."""
        func, args, kwargs, index = self._view
        below = self.base.array
        if func in execution.RESOLVED:  # its own inverse
            for position, local in self._array.locals.items():
                below.locals[origins[position]].copy_(execution.RESOLVED[func](local))
            return
        numbered = {p: torch.arange(local.numel()).view(local.shape) for p, local in below.locals.items()}
        places = execution.run(func, (Array(below.shape, torch.int64, below.sharding, numbered), *args), kwargs).values[index]
        for position, local in self._array.locals.items():
            to = below.locals[origins[position]]
            elements = to.flatten()
            elements[places.locals[position].flatten()] = local.flatten()
            to.copy_(elements.view(to.shape))


class Tensor(torch.Tensor):
    """A tensor of device ``xla:0``. For autograd's engine it lies on the CPU. Backward passes therefore run in the calling thread, and
    errors of user code in them reach the program."""

    _box: Box

    @staticmethod
    def __new__(cls, box: Box, requires_grad: bool = False):
        array = box._array
        t = torch.Tensor._make_wrapper_subclass(
            cls, array.shape, strides=box.strides, dtype=array.dtype, device="cpu", requires_grad=requires_grad
        )
        t._box = box
        return t

    def __init__(self, box: Box, requires_grad: bool = False):
        pass

    @property
    def _is_param(self) -> bool:
        return False

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        if value and type(self) is Tensor:
            self.__class__ = Parameter  # for torch.nn.Parameter(t), which sets _is_param

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        try:
            return dispatch(func, args, kwargs or {})
        except Exception as error:
            _locate(error, func)
            raise

    @property
    def device(self) -> torch.device:
        return DEVICE

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def is_xla(self) -> bool:
        return True

    def to(self, *args, **kwargs):
        other = args[0] if args else kwargs.get("tensor")
        if isinstance(other, torch.Tensor):
            kwargs.pop("tensor", None)
            args = (other.device, other.dtype, *args[1:])
        copy = kwargs.pop("copy", False)
        if sum(isinstance(a, bool) for a in args) == 2:  # non_blocking, copy
            *args, copy = args
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type != DEVICE.type:
            return _ToHost.apply(self, dtype or self.dtype)
        if (dtype is None or dtype == self.dtype) and not copy and memory_format is None:
            return self
        return super().to(dtype=dtype or self.dtype, copy=copy, memory_format=memory_format or torch.preserve_format)

    def type_as(self, other):
        return self.to(other)

    def cpu(self, memory_format=torch.preserve_format):
        return self.to("cpu")

    def __repr__(self, *, tensor_contents=None):
        whole = repr(self.detach().cpu())
        name = type(self).__name__ if type(self) is not Tensor else "tensor"
        return f"{name}{whole.removeprefix('tensor')[:-1]}, device='xla:0')"

    def __format__(self, spec):
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad: bool = False):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or DEVICE, requires_grad=requires_grad)

    def get_device(self) -> int:
        return 0

    def tolist(self):
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False):
        if not force:
            raise TypeError("can't convert xla:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")
        return self.detach().cpu().numpy()

    def __array__(self, dtype=None):
        return np.asarray(self.detach().cpu().numpy(), dtype=dtype)

    def __copy__(self):
        return self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo):
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment")
        with torch.no_grad():
            copied = self.detach().clone()
        copied._box.mark = self._box.mark
        if isinstance(self, Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        memo[id(self)] = copied
        return copied

    @property
    def data(self):
        """The same value; for autograd, writes to it do not count as writes to this tensor."""
        return getattr(type(self), "result", Tensor)(self._box)

    @data.setter
    def data(self, value):
        self._check_alike(value)
        if value.dtype != self.dtype or value.stride() != self.stride():
            with torch._C._DisableTorchDispatch():  # the metadata of this wrapper
                torch.Tensor.data.__set__(self, value)
        self._box = value._box

    def _check_alike(self, value: torch.Tensor) -> None:
        """Raises unless this tensor's data can be set to ``value``."""
        if not isinstance(value, Tensor) or value.shape != self.shape:
            raise RuntimeError(
                f"data of a tensor of the device (shape {tuple(self.shape)}, {self.dtype}) is set to a {type(value).__name__} of shape "
                f"{tuple(value.shape)}, {value.dtype}: pass a tensor of the device that is alike"
            )

    def set_(self, source=None, *args, **kwargs):
        if isinstance(source, Tensor) and not args and not kwargs:
            self.data = source
            return self
        return super().set_(source, *args, **kwargs)

    def untyped_storage(self):
        raise Unimplemented("a tensor of the device has no storage: its parts lie in several", hint="use tensor.cpu()")

    storage = untyped_storage

    def share_memory_(self):
        raise Unimplemented("share_memory_ of a tensor of the device: its parts are not in shared memory", hint="share tensor.cpu()")

    def __dlpack__(self, **kwargs):
        """Exports a copy on the host."""
        return self.detach().cpu().__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.detach().cpu().__dlpack_device__()

    def __reduce_ex__(self, protocol):
        raise Unimplemented(
            "a tensor of the logical device cannot be pickled", hint="pickle tensor.cpu(), or save it with shoal.spmd.checkpoint"
        )


class Parameter(Tensor):
    """A Tensor that torch.nn.Parameter made."""

    @property
    def _is_param(self) -> bool:
        return True

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        pass


# Lets torch's optimizers update all parameters by operators on lists, as on devices other than CPUs.
_foreach_supported_types += [Tensor, Parameter]


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, dtype):
        ctx.dtype = t.dtype
        whole = t._box.array.gathered()
        return whole.to(dtype, copy=True)

    @staticmethod
    def backward(ctx, gradient):
        return _OfHost.apply(gradient, ctx.dtype), None


class _OfHost(torch.autograd.Function):
    """The gradient of a copy on the host, which can be differentiated again."""

    @staticmethod
    def forward(ctx, gradient, dtype):
        ctx.dtype = gradient.dtype
        return on_device(gradient.to(dtype, copy=True))

    @staticmethod
    def backward(ctx, gradient):
        return _ToHost.apply(gradient, ctx.dtype), None


def on_device(value: torch.Tensor) -> Tensor:
    """Returns a device tensor that takes over the memory."""
    if processes.controller is not None:
        return processes.controller.uploaded(value)
    return Tensor(_strided(Box(Array.whole(value, world().num_devices)), known_strides(value)))


_compatible = torch._has_compatible_shallow_copy_type


def _may_share(input, from_):
    """The check of torch.nn.Module.to: may a parameter take over its copy's memory? Otherwise torch makes a new parameter."""
    return input is from_ or (isinstance(input, Tensor) == isinstance(from_, Tensor) and _compatible(input, from_))


_may_share.__annotations__ = {"input": torch.Tensor, "from_": torch.Tensor, "return": bool}  # compared by torch._dynamo

torch._has_compatible_shallow_copy_type = _may_share


_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


_strides: dict[tuple, list[tuple[int, ...] | None]] = {}
_IN_KEY = {int, bool, str, torch.dtype, torch.layout, torch.memory_format}
# Operators whose results are contiguous for any arguments.
_CONTIGUOUS_RESULTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "dot", "embedding", "embedding_dense_backward", "nll_loss_forward"}


def strides_of(func: Any, flat: list[Any], form: Form) -> list[tuple[int, ...] | None]:
    """Strides of an operator's results, as plain tensors have them; None for contiguous results and other values. With strides torch
    decides whether reshape and contiguous copy, and autograd chooses formulas."""
    key: list[Any] = [func, form]
    for a in flat:
        if isinstance(a, Tensor):
            box = a._box
            array = box._array
            key += (array.shape, array.dtype, box.strides)
        elif isinstance(a, torch.Tensor):
            key += (a.shape, a.dtype, a.stride())
        else:
            kind = type(a)
            key += (kind, a) if kind in _IN_KEY else (kind,)
    of = tuple(key)
    found = _strides.get(of)
    if found is None:
        if len(_strides) > _MOST_STRIDES:
            _strides.clear()
        found = _strides[of] = _strides_without_values(func, flat, form)
    return found


_MOST_STRIDES = 1 << 14


def _strides_without_values(func: Any, flat: list[Any], form: Form) -> list[tuple[int, ...] | None]:
    meta = torch.device("meta")

    def without_value(a: Any) -> Any:
        if isinstance(a, torch.device):
            return meta
        if not isinstance(a, torch.Tensor):
            return a
        strides = a._box.strides if isinstance(a, Tensor) else a.stride()
        shape = a._box._array.shape if isinstance(a, Tensor) else a.shape
        return torch.empty_strided(shape, contiguous_strides(shape) if strides is None else strides, dtype=a.dtype, device=meta)

    args, kwargs = unflatten([without_value(a) for a in flat], form)
    try:
        out = func(*args, **kwargs)
    except Exception:  # no kernel without values, or a view that plain memory does not allow
        return [None] * max(1, len(func._schema.returns))
    outs = out if isinstance(out, (list, tuple)) else [out]
    return [known_strides(o) if isinstance(o, torch.Tensor) else None for o in outs]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))


def known_strides(t: torch.Tensor) -> tuple[int, ...] | None:
    """Returns a box's strides for a plain tensor."""
    strides = t.stride()
    return None if strides == contiguous_strides(t.shape) else strides


def lies_by_shape(op: Operator, tensors: list[Tensor], kwargs: dict) -> bool:
    """True if the results of an operator that is no view are certainly contiguous."""
    if kwargs.get("memory_format") is None:
        for t in tensors:
            if t._box.strides is not None:
                return op.name in _CONTIGUOUS_RESULTS
        return not op.strides_given
    return False


def _arrays(flat: list[Any], targets: list[torch.Tensor]) -> tuple[list[Any], list[Array]]:
    """Returns the arguments with arrays for tensors, whole ones for host tensors, and the arrays of the targets."""
    n = world().num_devices
    held = {id(a): a._box.array if isinstance(a, Tensor) else Array.whole(a, n) for a in flat if isinstance(a, torch.Tensor)}
    return [held.get(id(a), a) for a in flat], [held[id(t)] for t in targets]


def _locate(error: Exception, func: Any) -> None:
    """Adds the operator and the program's line to the text of an error, once. A controller does so itself."""
    if processes.controller is not None or getattr(error, "_shoal_located", False):
        return
    error._shoal_located = True
    at = traffic.source(traffic.origin(str(func), ()))
    located(error, f"{func}, line {at[1]} of {at[0]}" if at else str(func))


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
        shared, split = _share_memory(targets), any(not t._box.array.sharding.is_replicated for t in tensors)
        out = _together(func, args, kwargs, targets) if not shared and (split or not op.num_returns) else NotImplemented
        if out is not NotImplemented:
            return out
        if shared or split:
            return _one_by_one(func, args, kwargs)
    cls = next((type(t).result for t in tensors if hasattr(type(t), "result")), Tensor)
    to_host = False
    if kwargs.get("device") is not None:
        to_host = torch.device(kwargs["device"]).type != DEVICE.type and not in_backward
        kwargs = {**kwargs, "device": torch.device("cpu")}
        flat, form = flatten(args, kwargs)
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    inner, written = _arrays(flat, targets)
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
                out.append(cls(_strided(Box(v), strides[i] if i < len(strides) else None)) if isinstance(v, Array) else v)
        for i in op.written_returns[: len(out)]:
            out[i] = targets[i]
    return out if result.as_list and op.num_returns == 1 else tuple(out) if result.as_list else out[0] if out else None


def _strided(box: Box, strides: tuple[int, ...] | None) -> Box:
    box.strides = strides
    return box


def _check_memory(func: Any, box: Box) -> None:
    """Raises unless the tensor's memory is that of a plain one: all elements of its base, in this order."""
    array, base = box.array, box
    while base.base is not None:
        base = base.base
    same = math.prod(base.array.shape) == math.prod(array.shape) and all(t.is_contiguous() for t in array.locals.values())
    if not array.sharding.is_replicated and not same:
        raise Unimplemented(f"{func} of a view of a tensor that is split", hint="clone() it first, or use the view's own operators")


# Argument positions that accept host tensors, as in CUDA.
TAKES_HOST = {
    "index": 1, "_unsafe_index": 1, "index_put": 1, "index_put_": 1, "_index_put_impl_": 1, "_unsafe_index_put": 1,
    "_pack_padded_sequence": 1, "_ctc_loss": slice(1, 4),
}  # fmt: skip


def check_devices(func: Any, args: tuple, flat: list[Any], targets: list[torch.Tensor]) -> None:
    """Raises for a host tensor that the program mixes with device tensors. As with CUDA, indices may lie on the host, and zero-dimensional
    tensors for pointwise operators. Tensors that torch's C++ code made are accepted. Processes compare all accepted ones."""
    for a in flat:
        if isinstance(a, Tensor) or not isinstance(a, torch.Tensor):
            continue
        target = any(a is t for t in targets)
        held = sys.getrefcount(a) > REFERENCES + target or (a._is_view() and sys.getrefcount(a._base) > REFERENCES - 2)
        if held and (target or not _may_lie_on_host(func, args, a)):
            raise _of_two_devices(func, a)
        if not target and (held or a.dim()):
            world().verify_tensor(a)


def _may_lie_on_host(func: Any, args: tuple, a: torch.Tensor) -> bool:
    op = operator_of(func)
    if a.dim() == 0 and (op.on_lists or torch.Tag.pointwise in func.tags or op.name.rstrip("_") in _TAKES_NUMBERS):
        return True
    at = TAKES_HOST.get(op.name)
    if at is None or a.is_floating_point() or a.is_complex() or not any(isinstance(b, Tensor) for b in args[:1]):
        return False
    places = args[at] if isinstance(at, slice) else args[at] if isinstance(args[at], (list, tuple)) else [args[at]]
    return any(a is b for b in places)


_TAKES_NUMBERS = {*registry.POINTWISE.split(), "copy", "index_fill", "index_put", "_index_put_impl", "_unsafe_index_put"}


def _of_two_devices(func: Any, a: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, xla:0 and {a.device}! "
        f"({func}: move the tensor of shape {tuple(a.shape)} with .to(device))"
    )


@functools.cache
def consists_of_others(func: Any) -> bool:
    """True for an operator without a rule that consists of others. It arrives here only in inference mode; otherwise autograd decomposes
    it."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd") and registry.find(func) is None


def reshaped(func: Any, args: tuple, kwargs: dict) -> Any:
    """Makes the tensor a view of its former value."""
    t = args[0]
    if func is aten.detach_.default:
        return t
    packet = getattr(aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
    view = getattr(packet, "int" if packet is aten.transpose else func._overloadname, None)
    if view is None or not operator_of(view).is_view or view is aten.as_strided.default or t._box.mark is not None:
        raise Unimplemented(f"{func} changes the shape of a tensor of the device in place", hint="use the operator without the underscore")
    t._box = dispatch(view, args, kwargs)._box
    with torch._C._DisableTorchDispatch():  # shape and strides of the wrapper
        func(*args, **kwargs)
    return t


def _plain(value: Any) -> Any:
    return tree_map(lambda a: a._box.array.gathered() if isinstance(a, Tensor) else a, value)


def _together(func: Any, args: tuple, kwargs: dict, targets: list[torch.Tensor]) -> Any:
    """Runs an operator on lists of tensors in one call. It requires one part of each tensor on this process, and one sharding per place of
    the lists. Returns NotImplemented otherwise."""
    if registry.find(func) is not registry.pointwise:
        return NotImplemented
    lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    if len({len(a) for a in lists}) != 1 or not all(isinstance(t, Tensor) for t in lists[0]):
        return NotImplemented
    like = [t._box.array for t in lists[0]]
    shardings = [a.sharding for a in like]
    held: dict[int, Any] = {id(a): _locals(a, shardings) for a in lists}
    alone = {id(a): list(a._box.array.locals.values()) for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}
    if None in held.values() or any(len(v) != 1 for v in alone.values()):
        return NotImplemented
    held |= {key: local for key, (local,) in alone.items()}
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    op = operator_of(func)
    flat, form = flatten(tuple([held.get(id(a), a) for a in args]), {name: held.get(id(a), a) for name, a in kwargs.items()})
    out, _ = execution.called(func, op, flat, form)
    for box in dict.fromkeys([t._box for t in targets if isinstance(t, Tensor)]):
        box.wrote()

    def made(values: list[torch.Tensor]) -> list[Tensor]:
        return [Tensor(Box(Array(a.shape, v.dtype, a.sharding, dict.fromkeys(a.locals, v)))) for v, a in zip(values, like, strict=True)]

    if not op.num_returns:
        return None
    return made(out) if op.num_returns == 1 else tuple(map(made, out))


def _locals(tensors: Sequence[torch.Tensor], shardings: list[Sharding]) -> list[torch.Tensor] | None:
    """Returns this process's parts, if it has one per tensor with these shardings. Zero-dimensional tensors may be whole, and on the
    host."""
    found = []
    for t, sharding in zip(tensors, shardings, strict=True):
        if isinstance(t, Tensor):
            array = t._box.array
            if len(array.locals) != 1 or (array.sharding is not sharding and array.sharding != sharding and t.dim()):
                return None
            found += array.locals.values()
        elif t.dim():
            return None
        else:
            found.append(t)
    return found


def _share_memory(targets: list[torch.Tensor]) -> bool:
    """True if a write to one of them may change another."""
    bases = []
    for t in targets:
        if isinstance(t, Tensor):
            box = t._box
            while box.base is not None:
                box = box.base
            bases.append(box)
    return len(set(bases)) < len(bases)


def _one_by_one(func: Any, args: tuple, kwargs: dict) -> Any:
    """Runs an operator on lists place by place, so that every tensor keeps its sharding."""
    places = max(len(a) for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)))
    outs = []
    for i in range(places):

        def cut(a, at=i):
            return [a[at]] if isinstance(a, (list, tuple)) and len(a) == places else a

        outs.append(dispatch_one(func, tuple(map(cut, args)), {k: cut(v) for k, v in kwargs.items()}))
    if not operator_of(func).num_returns:
        return None
    if operator_of(func).num_returns == 1:
        return [o[0] for o in outs]
    return tuple([o[k][0] for o in outs] for k in range(len(func._schema.returns)))


def dispatch_one(func: Any, args: tuple, kwargs: dict) -> Any:
    targets = operator_of(func).written_by(args, kwargs)
    for t in targets:
        if isinstance(t, Tensor):
            t._box.before_write()
    flat, form = flatten(args, kwargs)
    inner, written = _arrays(flat, targets)
    result = execution.run_flat(func, inner, form, written)
    for box in dict.fromkeys(t._box for t in targets if isinstance(t, Tensor)):
        box.wrote()
    return [Tensor(Box(v)) if isinstance(v, Array) else v for v in result.values]


# ---- operators between host and device ------------------------------------------------------------------------------------------------


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
    """Serves .float(), .type_as and autograd, which name the CPU as the device; ``Tensor.to`` copies to the host."""
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
        if not isinstance(x, Tensor) and x.dim():  # torch's C++ code compares with zero-dimensional tensors
            raise _of_two_devices(func, x)
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


# ---- factory functions on the device --------------------------------------------------------------------------------------------------

_library = torch.library.Library("aten", "IMPL")


def _made(overload: Any):
    def make(*args, **kwargs):
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "layout")}
        if operator_of(overload).random:
            world().verify_stream(str(overload), kwargs.get("generator"))
        # torch.tensor and its like fill the result without __torch_dispatch__; _from_data wraps it.
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded("Python")
        if processes.controller is not None and not excluded and not operator_of(overload).random:
            return processes.controller.make(overload, args, kwargs)
        made = overload(*args, **kwargs, device="cpu")
        return made if excluded else on_device(made)

    return make


def _from_data(make: Any):
    """Wraps torch.tensor and as_tensor: makes the value on the host, then moves it to the device."""

    @functools.wraps(make)
    def tensor(*args, **kwargs):
        device = kwargs.get("device")
        if device is None or torch.device(device).type != DEVICE.type:
            return make(*args, **kwargs)
        kwargs.pop("device")
        requires_grad = kwargs.pop("requires_grad", False)
        value = make(*args, **kwargs).clone()
        world().verify_tensor(value)
        return on_device(value).requires_grad_(requires_grad)

    return tensor


def _register() -> None:
    names = (
        "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m", "linspace", "logspace",
        "full", "zeros", "ones", "rand", "randn", "randint", "randint.low", "randperm", "tril_indices", "triu_indices", "scalar_tensor",
        "rand.generator", "randn.generator", "randint.generator", "randint.low_generator", "randperm.generator",
    )  # fmt: skip
    for name in names:
        packet, _, overload = name.partition(".")
        _library.impl(name, _made(getattr(getattr(aten, packet), overload or "default")), "PrivateUse1")

    torch.tensor, torch.as_tensor, torch.asarray = map(_from_data, (torch.tensor, torch.as_tensor, torch.asarray))


_register()
