"""FSDP by marks (``SpmdFullyShardedDataParallel``): parameters are split along the mesh's ``fsdp`` axis, outputs along the batch."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shoal.exceptions import InvalidArgument, ShoalError
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._fsdp.running import as_now, is_again, on_rows
from shoal.spmd._fsdp.unit import Unit, allows, largest_dim
from shoal.spmd._layout.device import DEVICE
from shoal.spmd._layout.mesh import Mesh, get_global_mesh
from shoal.spmd._layout.sharding import Sharding
from shoal.spmd._marks.marking import mark_freely, mark_sharding, sharding_for, text_of


class WrapError(ShoalError, RuntimeError):
    """Error for a module that cannot be wrapped."""

    code = "InvalidArgument"


class SpmdFullyShardedDataParallel(nn.Module):
    """Splits the parameters of ``module`` in place and its outputs along the batch.

    Every parameter is split along its largest dimension (the first of several) over the mesh's axis ``fsdp``; scalars are marked as whole.
    Marked parameters and those of inner units are left alone. ``shard_output(output, mesh)`` marks the outputs; without it the output, or
    the first of a tuple, is split along dimension 0. ``extra_data_axis``: outputs are split over this axis as well. Follows
    torch_xla.experimental.spmd_fully_sharded_data_parallel. Raises ValueError for a wrong mesh and RuntimeError for a wrong module."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh | None = None,
        shard_output: Callable[[Any, Mesh], None] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ):
        _check_module(module)
        mesh = get_global_mesh() if mesh is None else mesh
        if mesh is None:
            raise InvalidArgument(
                "No mesh is provided and no global mesh is set. Please provide a mesh.", hint="pass mesh=, or call set_global_mesh(mesh)"
            )
        if mesh.axis_names is None or "fsdp" not in mesh.axis_names:
            raise InvalidArgument(
                f"The mesh must have an axis named 'fsdp'. Its axes are {mesh.axis_names}",
                hint="name the axis that splits parameters 'fsdp'",
            )
        if extra_data_axis is not None and extra_data_axis not in mesh.axis_names:
            raise InvalidArgument(
                f"The provided {extra_data_axis} axis is not in the mesh.", hint=f"its axes are {', '.join(mesh.axis_names)}"
            )
        super().__init__()
        if auto_wrap_policy is not None:
            _refuse_wrapped(module)
            make = auto_wrapper_callable or functools.partial(SpmdFullyShardedDataParallel, extra_data_axis=extra_data_axis)
            _wrap_children(module, auto_wrap_policy, lambda m: make(m, mesh=mesh, shard_output=shard_output), set())
        module.to(DEVICE)
        self._orig_module = module
        self._mesh, self._extra_data_axis = mesh, extra_data_axis
        self._shard_output = shard_output or self._split_batch
        inside = [m for m in module.modules() if isinstance(m, SpmdFullyShardedDataParallel)]
        self._unit: Unit | None = None
        if extra_data_axis is None and all(m._unit is not None for m in inside) and allows(module, mesh, [m._unit for m in inside]):
            self._unit = Unit(module)
            return
        inner = {p for m in inside for p in m.parameters()}
        for p in module.parameters():
            if p not in inner and text_of(p) == "":
                mark_sharding(p, mesh, spec_of(p.shape))
                p._box.let_yield()
                if p.requires_grad:
                    p.register_hook(functools.partial(_split, sharding_for(mesh, spec_of(p.shape), p.dim())))

    @property
    def module(self) -> nn.Module:
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._unit is None:
            output = self._orig_module(*args, **kwargs)
        else:
            output = self._unit.run(args, kwargs)
            if on_rows() or is_again(args, kwargs):
                return output  # inside another unit's run on rows, the output is an ordinary tensor
        self._shard_output(output, self._mesh)
        return output

    def _split_batch(self, output: Any, mesh: Mesh) -> None:
        first = output
        if isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor):
            first = output[0]
            warnings.warn("the output is a tuple: its first tensor is split along dimension 0; pass shard_output to decide", stacklevel=3)
        if not isinstance(first, Tensor):
            raise WrapError(
                f"The output type is not supported: {type(output)}. Please provide your own shard_output callable.",
                hint="shard_output(output, mesh) marks the output's tensors",
            )
        if first.dim() == 0:
            mark_sharding(first, mesh, ())
            return
        axes = "fsdp" if self._extra_data_axis is None else (self._extra_data_axis, "fsdp")
        mark_sharding(first, mesh, (axes, *(None,) * (first.dim() - 1)))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_module"), name)

    def __getitem__(self, key: Any) -> nn.Module:
        return self._orig_module[key]


def spec_of(shape: torch.Size) -> tuple[str | None, ...]:
    """Returns the spec of a parameter of this shape: split along its largest dimension, the first of several."""
    return tuple("fsdp" if d == largest_dim(shape) else None for d in range(len(shape)))


def _split(sharding: Sharding, gradient: Tensor) -> Tensor:
    """Reshards a gradient to its parameter's sharding."""
    mark_freely(gradient, sharding)
    return gradient


def _prepare_spmd_partition_spec(param: torch.Tensor, extra_data_axis: str | None = None, shard_maximal: bool = False) -> tuple:
    """Returns a parameter's spec, as torch_xla's function of this name, which programs import. The axis fsdp splits dimension 0, or with
    ``shard_maximal`` the largest. ``extra_data_axis`` splits the same dimension, and is more significant."""
    at = max(range(param.dim()), key=lambda d: param.shape[d], default=0) if shard_maximal else 0
    axes = "fsdp" if extra_data_axis is None else (extra_data_axis, "fsdp")
    return tuple(axes if d == at else None for d in range(param.dim()))


def _check_module(module: Any) -> None:
    if isinstance(module, SpmdFullyShardedDataParallel):
        raise WrapError(
            "Cannot wrap a module that is already wrapped with FSDP. For nested FSDP, first wrap the inner child modules before wrapping "
            "the outer parent module."
        )
    if not isinstance(module, nn.Module) or not _has_forward(module):
        raise WrapError(
            "The module wrapped by FSDP *must define a `forward` method and call it during the module's forward pass for FSDP to work "
            f"correctly.* {type(module).__name__} defines none",
            hint="wrap modules whose forward the program calls",
        )


def _has_forward(module: nn.Module) -> bool:
    return "forward" in vars(module) or type(module).forward not in (nn.Module.forward, nn.ModuleList.forward, nn.ModuleDict.forward)


def _refuse_wrapped(module: nn.Module) -> None:
    for name, m in module.named_modules():
        if isinstance(m, SpmdFullyShardedDataParallel):
            raise InvalidArgument(
                f"Expected {name} to NOT be SpmdFullyShardedDataParallel if using an `auto_wrap_policy`",
                hint="wrap by hand or with auto_wrap_policy, not both",
            )


def _wrap_children(module: nn.Module, policy: Callable[..., bool], make: Callable[[nn.Module], nn.Module], ignored: set) -> int:
    """Wraps the modules below that the policy selects, innermost first. Returns the number of their parameters' elements."""
    wrapped = 0
    for name, child in list(module.named_children()):
        total = sum(p.numel() for p in child.parameters())
        if not _policy_wraps(policy, child, True, total):
            continue
        inside = _wrap_children(child, policy, make, ignored)
        if not _has_forward(child) or not _policy_wraps(policy, child, False, total - inside):
            wrapped += inside
            continue
        setattr(module, name, make(child))
        wrapped += total
    return wrapped


def _policy_wraps(policy: Callable[..., bool], module: nn.Module, recurse: bool, elements: int) -> bool:
    """Calls a policy. Its argument for the number of elements is nonwrapped_numel in torch's policies, unwrapped_params in torch_xla's."""
    names = inspect.signature(policy).parameters
    given = {n: elements for n in ("nonwrapped_numel", "unwrapped_params") if n in names}
    return bool(policy(module=module, recurse=recurse, **given))


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Makes the module recompute its forward in the backward pass instead of keeping activations; returns the module."""
    forward = module.forward

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(as_now(forward), *args, use_reentrant=False, **kwargs)

    checkpointed._shoal_checkpointed = True
    module.forward = checkpointed
    return module


__all__ = ["SpmdFullyShardedDataParallel", "checkpoint_module", "spec_of"]
