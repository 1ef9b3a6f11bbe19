"""Replaces torch's FSDP by Shoal's: ``install``, ``uninstall``, ``is_installed``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP1
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as torch_register_fsdp_forward_method
from torch.distributed.fsdp import share_comm_ctx as torch_share_comm_ctx
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchShardedGradScaler

from shoal.exceptions import InvalidArgument
from shoal.fsdp import _libraries
from shoal.fsdp._fully_shard import fully_shard, on_sharded
from shoal.fsdp._module import register_fsdp_forward_method, share_comm_ctx
from shoal.fsdp._parameters.mesh import DataMesh
from shoal.fsdp1.fully_sharded_data_parallel import FullyShardedDataParallel
from shoal.fsdp1.sharded_grad_scaler import ShardedGradScaler

# Modules of torch in which the names are replaced. Other modules keep torch's classes, because they expect FSDP1's flat parameters.
_WHERE = (
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp.sharded_grad_scaler",
)


@dataclass
class _Installed:
    """The original names and code, which ``uninstall`` restores."""

    names: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)  # namespace, name, torch's object
    functions: list[tuple[FunctionType, CodeType]] = field(default_factory=list)
    announced: set[tuple[tuple[int, ...], int]] = field(default_factory=set)  # DataMesh.key of each announced mesh


_installed: _Installed | None = None


def is_installed() -> bool:
    """Returns True while torch's FSDP names are Shoal's in this process."""
    return _installed is not None


def install() -> None:
    """Replaces torch's ``fully_shard`` and ``FullyShardedDataParallel`` by Shoal's, also in modules that imported them before.

    It also replaces ``register_fsdp_forward_method``, ``share_comm_ctx`` and ``ShardedGradScaler``. ``FSDPModule``, policies and enums stay
    torch's: Shoal accepts them, and its sharded modules are instances of torch's ``FSDPModule``. ``uninstall`` reverts it. A program needs
    no change with ``python -m shoal.fsdp.run script.py`` or ``SHOAL_FSDP=1``.

    torch's function objects get new code, and module-level names of torch's FSDP1 classes are rebound. Instantiating a class that was
    derived from torch's ``FullyShardedDataParallel`` before raises InvalidArgument.
    """
    global _installed
    if _installed is not None:
        return
    import torch.distributed._composable.fsdp  # the old path of the same names
    import torch.distributed.checkpoint.state_dict  # noqa: F401  before rebinding: it must keep torch's FSDP1

    ours = {id(TorchFSDP1): FullyShardedDataParallel, id(TorchShardedGradScaler): ShardedGradScaler}
    installed = _Installed()
    for theirs, function, forward in (
        (torch_fully_shard, fully_shard, _fully_shard),
        (torch_register_fsdp_forward_method, register_fsdp_forward_method, _register_fsdp_forward_method),
        (torch_share_comm_ctx, share_comm_ctx, _share_comm_ctx),
    ):
        ours[id(theirs)] = function
        installed.functions.append((theirs, theirs.__code__))
        theirs.__code__ = forward.__code__.replace(co_freevars=theirs.__code__.co_freevars)
    TorchFSDP1.__new__ = _new_fsdp1
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType) or (name not in _WHERE and name.partition(".")[0] in ("torch", "shoal")):
            continue
        namespace = object.__getattribute__(module, "__dict__")  # bypasses __getattribute__ of lazy modules
        for of, theirs in list(namespace.items()):
            if id(theirs) in ours:
                installed.names.append((namespace, of, theirs))
                namespace[of] = ours[id(theirs)]
    _installed = installed
    _libraries.follow(is_installed)


def announce(unit: str, data: DataMesh) -> None:
    """Writes one line to stderr if Shoal is installed, once per mesh, on its first rank."""
    if _installed is None or data.index != 0 or data.key in _installed.announced:
        return
    _installed.announced.add(data.key)
    hybrid = f", {data.replicas}x{data.shards}: replicas x shards" if data.replicas > 1 else ""
    over = f"{len(data.ranks)} rank{'s' if len(data.ranks) > 1 else ''} ({data.mesh.device_type}{hybrid})"
    # one write, so that lines of several ranks do not mix
    sys.stderr.write(f"shoal: Shoal shards this model over {over}, in the place of torch's FSDP; first unit: {unit}\n")


on_sharded.append(announce)


def uninstall() -> None:
    """Restores torch's functions and classes. Names that were imported since ``install`` stay Shoal's."""
    global _installed
    if _installed is None:
        return
    for namespace, name, theirs in _installed.names:
        namespace[name] = theirs
    for theirs, code in _installed.functions:
        theirs.__code__ = code
    _installed = None


# Functions whose code torch's functions have while Shoal is installed.


def _fully_shard(*args, **kwargs):
    from shoal.fsdp._fully_shard import fully_shard  # late: this code runs in torch's namespace

    return fully_shard(*args, **kwargs)


def _register_fsdp_forward_method(*args, **kwargs):
    from shoal.fsdp._module import register_fsdp_forward_method  # late: this code runs in torch's namespace

    return register_fsdp_forward_method(*args, **kwargs)


def _share_comm_ctx(*args, **kwargs):
    from shoal.fsdp._module import share_comm_ctx  # late: this code runs in torch's namespace

    return share_comm_ctx(*args, **kwargs)


def _new_fsdp1(cls: type, *args: Any, **kwargs: Any) -> Any:
    """``__new__`` of torch's FSDP1 from the first ``install`` on; Python cannot remove a ``__new__`` from a class again."""
    if _installed is None:
        return object.__new__(cls)
    if cls is not TorchFSDP1:
        raise InvalidArgument(
            f"{cls.__module__}.{cls.__qualname__} was derived from torch's FullyShardedDataParallel before shoal.fsdp.install()",
            hint="call install() before that module is imported, or start the program with python -m shoal.fsdp.run",
        )
    return FullyShardedDataParallel(*args, **kwargs)
