"""Tensors on the logical device. A program sees ordinary tensors of device ``xla:0``; each has an Array of local tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import _foreach_supported_types

from shoal._core.telemetry import Activity, at
from shoal.exceptions import Unimplemented
from shoal.spmd._engine.box import Box, known_strides, strided
from shoal.spmd._layout import processes, traffic
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.errors import located
from shoal.spmd._layout.processes import world

_dispatch: Callable[[Any, tuple, dict], Any]


def dispatch_by(function: Callable[[Any, tuple, dict], Any]) -> None:
    """Sets the function that runs operators on device tensors. An import of the function here would be circular, because its module imports
    the class Tensor."""
    global _dispatch
    _dispatch = function


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
            self.__class__ = Parameter  # torch.nn.Parameter(t) sets _is_param

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        try:
            return _dispatch(func, args, kwargs or {})
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
        if sum(isinstance(a, bool) for a in args) == 2:  # the arguments are non_blocking and copy
            *args, copy = args
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type != DEVICE.type:
            return _ToHost.apply(self, dtype or self.dtype)
        if (dtype is None or dtype == self.dtype) and not copy and memory_format is None:
            return self
        return super().to(dtype=dtype or self.dtype, copy=copy, memory_format=memory_format or torch.preserve_format)

    def type_as(self, other):
        return self.to(other)

    def backward(self, *args, **kwargs):
        with at(Activity.BACKWARD):
            return super().backward(*args, **kwargs)

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
        """A tensor over the same value. autograd does not count writes to it as writes to this tensor."""
        return getattr(type(self), "result", Tensor)(self._box)

    @data.setter
    def data(self, value):
        self._check_alike(value)
        if value.dtype != self.dtype or value.stride() != self.stride():
            with torch._C._DisableTorchDispatch():  # changes the metadata of this wrapper only
                torch.Tensor.data.__set__(self, value)
        self._box = value._box

    def _check_alike(self, value: torch.Tensor) -> None:
        """Raises RuntimeError unless ``value`` may become this tensor's data."""
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
    """The backward of a copy to the host, as a Function of its own, so that gradients can be differentiated again."""

    @staticmethod
    def forward(ctx, gradient, dtype):
        ctx.dtype = gradient.dtype
        return on_device(gradient.to(dtype, copy=True))

    @staticmethod
    def backward(ctx, gradient):
        return _ToHost.apply(gradient, ctx.dtype), None


def on_device(value: torch.Tensor) -> Tensor:
    """Returns a device tensor that takes over the memory of a host tensor."""
    if processes.controller is not None:
        return processes.controller.uploaded(value)
    return Tensor(strided(Box(Array.whole(value, world().num_devices)), known_strides(value)))


_compatible = torch._has_compatible_shallow_copy_type


def _may_share(input, from_):
    """Replaces torch's check in torch.nn.Module.to: may a parameter take over its copy's memory? Otherwise torch makes a new parameter."""
    return input is from_ or (isinstance(input, Tensor) == isinstance(from_, Tensor) and _compatible(input, from_))


# torch._dynamo compares the signature with torch's
_may_share.__annotations__ = {"input": torch.Tensor, "from_": torch.Tensor, "return": bool}

torch._has_compatible_shallow_copy_type = _may_share


def _locate(error: Exception, func: Any) -> None:
    """Adds the operator and the program's line to the text of an error, once. Does nothing in a program with a controller, which adds them
    itself."""
    if processes.controller is not None or getattr(error, "_shoal_located", False):
        return
    error._shoal_located = True
    at = traffic.source(traffic.origin(str(func), ()))
    located(error, f"{func}, line {at[1]} of {at[0]}" if at else str(func))
