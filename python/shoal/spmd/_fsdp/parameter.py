"""Parameters whose rows lie in the memory of ``shoal.fsdp``'s engine, and copies of modules with such parameters."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.optim.optimizer import _foreach_supported_types

from shoal.exceptions import Unimplemented
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Parameter, Tensor
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import Sharding

if TYPE_CHECKING:
    from shoal.fsdp._parameters.parameter import ShardedParameter


class EngineBox(Box):
    """The box of a parameter whose rows lie in the memory of ``shoal.fsdp``'s engine. ``whole``, if set, is its array while a unit is
    tested."""

    def __init__(self, parameter: ShardedParameter, sharding: Sharding):
        self._parameter, self._sharding = parameter, sharding
        self.whole: Array | None = None
        super().__init__(self._new_array())
        self.mark = sharding

    def _new_array(self) -> Array:
        p = self._parameter
        array = Array(p.shape, p.dtype, self._sharding, {self._sharding.position(world().rank): p.own})
        array.yields = True
        return array

    @property
    def array(self) -> Array:
        if self.whole is not None:
            return self.whole
        if next(iter(self._array.locals.values())) is not self._parameter.own:  # the engine has rebuilt its unit in other memory
            self._array = self._new_array()
        return self._array

    def before_write(self) -> None:
        self._parameter.state.writes.before_rows(self._parameter)

    def put(self, array: Array) -> None:
        raise Unimplemented(
            f"parameter {self._parameter.name} is split by SpmdFullyShardedDataParallel and keeps that sharding",
            hint="mark parameters before the module is wrapped: marked ones are left alone",
        )


_gradient_of_operators = torch.Tensor.grad.__get__


class EngineParameter(Parameter):
    """A parameter of an engine's unit. Its gradient is the engine's gradient, plus that of operators which use the parameter outside of the
    unit."""

    _engine: ShardedParameter
    _known: tuple | None = None

    @property
    def grad(self):
        reduced, operators = self._engine.views.sharded.grad, _gradient_of_operators(self)
        if operators is not None:
            operators._box.lay(self._box.mark)
        if reduced is None:
            return operators
        if self._known is None or self._known[0] is not reduced:
            box = self._box
            array = box._new_array()
            array.locals = dict.fromkeys(array.locals, reduced._local_tensor)
            self._known = (reduced, Tensor(Box(array)))
        if operators is not None:  # operators outside of the unit used the parameter
            torch.Tensor.grad.__set__(self, None)
            with torch.no_grad():
                self._known[1].add_(operators)
        return self._known[1]

    @grad.setter
    def grad(self, value):
        if self._known is not None and value is self._known[1]:
            return
        self._engine.views.sharded.grad = self._known = None
        torch.Tensor.grad.__set__(self, value)

    @grad.deleter
    def grad(self):
        self.grad = None

    def __deepcopy__(self, memo):
        """Returns a parameter outside of the engine, with this one's sharding as its mark."""
        copied = super().__deepcopy__(memo)
        copied._box.let_yield()
        return copied

    @property
    def data(self):
        return Tensor(self._box)

    @data.setter
    def data(self, value):
        """Copies the values into the engine's memory, which stays in place."""
        self._check_alike(value)
        if value.dtype != self.dtype:
            raise Unimplemented(
                f"parameter {self._engine.name} was converted to {value.dtype} after SpmdFullyShardedDataParallel split it",
                hint="convert the module before it is wrapped",
            )
        with torch.no_grad():
            self.copy_(value)


EngineParameter.__name__ = EngineParameter.__qualname__ = "Parameter"  # a copy or print names the class as torch does
_foreach_supported_types.append(EngineParameter)


@functools.cache
def named_as(cls: type, sharded: type) -> type:
    def copied(module: nn.Module, memo: dict) -> nn.Module:
        return _copied(module, cls, memo)

    return type(cls.__name__, (sharded,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__deepcopy__": copied})


def _copied(module: nn.Module, cls: type, memo: dict) -> nn.Module:
    """Copies a unit's module. The copy runs operator by operator on marked parameters."""
    for m in reversed(list(module.modules())[1:]):  # inner ones first; the unit's modules have hooks of the engine, which a copy leaves out
        if id(m) not in memo and not hasattr(type(m), "__deepcopy__"):
            _copied(m, type(m), memo)
    memo[id(module)] = copied = cls.__new__(cls)
    for name, value in vars(module).items():
        if name in _OF_ENGINE:
            continue
        if isinstance(value, dict) and name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            value = type(value)((k, h) for k, h in value.items() if not _of_engine(h))
        vars(copied)[name] = copy.deepcopy(value, memo)
    return copied


_OF_ENGINE = {"_shoal_fsdp_state", "_is_fsdp_managed_module", "_fsdp_use_orig_params", STATE_KEY, REGISTRY_KEY}


def _of_engine(hook: Any) -> bool:
    return (getattr(getattr(hook, "hook", hook), "__module__", None) or "").startswith("shoal.")
