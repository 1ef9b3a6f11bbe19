"""Makes torch's FSDP names mean Shoal's: ``install``, ``uninstall``, ``is_installed``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from _shoal_switch import asked
from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP1
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as torch_register_fsdp_forward_method
from torch.distributed.fsdp import share_comm_ctx as torch_share_comm_ctx

from shoal.exceptions import InvalidArgument
from shoal.fsdp import _libraries
from shoal.fsdp._fully_shard import fully_shard
from shoal.fsdp._mesh import DataMesh
from shoal.fsdp._module import register_fsdp_forward_method, share_comm_ctx

# Where torch shows the names. Its other modules keep their own: they expect flat parameters of FSDP1.
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
    """The names that ``uninstall`` puts back."""

    names: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)  # namespace, name, torch's
    functions: list[tuple[FunctionType, CodeType]] = field(default_factory=list)
    announced: set[tuple[tuple[int, ...], int]] = field(default_factory=set)  # the ranks of a mesh, and its replicas


_installed: _Installed | None = None


def is_installed() -> bool:
    """Whether torch's FSDP names are Shoal's in this process."""
    return _installed is not None


def install() -> None:
    """From now on torch's ``fully_shard`` and ``FullyShardedDataParallel`` are Shoal's, in modules that imported them before, too.

    So are ``register_fsdp_forward_method``, ``share_comm_ctx`` and ``ShardedGradScaler``. ``FSDPModule``, policies and enums stay torch's:
    Shoal takes them, and a module that it sharded is an instance of torch's ``FSDPModule``. ``uninstall`` takes it back. Without a line in
    the program: ``python -m shoal.fsdp.run script.py``, or ``SHOAL_FSDP=1``.

    torch's functions call Shoal's, whoever holds them. Module-level names of torch's FSDP1 classes are rebound. A class that was derived
    from torch's ``FullyShardedDataParallel`` before raises InvalidArgument where it is instantiated.
    """
    global _installed
    if _installed is not None:
        return
    import torch.distributed._composable.fsdp  # old path of the same names
    import torch.distributed.checkpoint.state_dict  # noqa: F401  it keeps torch's FSDP1, whether it is imported before or later
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchShardedGradScaler

    from shoal.fsdp1 import FullyShardedDataParallel, ShardedGradScaler

    ours = {id(TorchFSDP1): FullyShardedDataParallel, id(TorchShardedGradScaler): ShardedGradScaler}
    done = _Installed()
    for theirs, function, forward in (
        (torch_fully_shard, fully_shard, _fully_shard),
        (torch_register_fsdp_forward_method, register_fsdp_forward_method, _register_fsdp_forward_method),
        (torch_share_comm_ctx, share_comm_ctx, _share_comm_ctx),
    ):
        ours[id(theirs)] = function
        done.functions.append((theirs, theirs.__code__))
        theirs.__code__ = forward.__code__.replace(co_freevars=theirs.__code__.co_freevars)
    TorchFSDP1.__new__ = _new_fsdp1
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType) or (name not in _WHERE and name.partition(".")[0] in ("torch", "shoal")):
            continue
        namespace = object.__getattribute__(module, "__dict__")  # a lazy module does not notice
        for of, theirs in list(namespace.items()):
            if id(theirs) in ours:
                done.names.append((namespace, of, theirs))
                namespace[of] = ours[id(theirs)]
    _installed = done
    _libraries.follow()


def install_if_asked() -> None:
    """At the end of the import of ``shoal.fsdp`` and of ``shoal.fsdp1``: installs if $SHOAL_FSDP is on."""
    half = sys.modules.get("shoal.fsdp1")  # imported first, it imports shoal.fsdp
    if asked() and (half is None or hasattr(half, "FullyShardedDataParallel")):
        install()


def announce(unit: str, data: DataMesh) -> None:
    """Where Shoal is installed: a line on stderr, once per ranks of a mesh, from the first of them."""
    if _installed is None or data.index != 0 or data.key in _installed.announced:
        return
    _installed.announced.add(data.key)
    hybrid = f", {data.replicas}x{data.shards}: replicas x shards" if data.replicas > 1 else ""
    over = f"{len(data.ranks)} rank{'s' if len(data.ranks) > 1 else ''} ({data.mesh.device_type}{hybrid})"
    sys.stderr.write(f"shoal: Shoal shards this model over {over}, in the place of torch's FSDP; first unit: {unit}\n")  # in one piece


def uninstall() -> None:
    """Gives torch its own functions and classes back. Names that were imported since ``install`` stay Shoal's."""
    global _installed
    if _installed is None:
        return
    for namespace, name, theirs in _installed.names:
        namespace[name] = theirs
    for theirs, code in _installed.functions:
        theirs.__code__ = code
    _installed = None


# Code of torch's functions while Shoal is installed: it runs in torch's namespace, so it imports what it calls.


def _fully_shard(*args, **kwargs):
    from shoal.fsdp import fully_shard

    return fully_shard(*args, **kwargs)


def _register_fsdp_forward_method(*args, **kwargs):
    from shoal.fsdp import register_fsdp_forward_method

    return register_fsdp_forward_method(*args, **kwargs)


def _share_comm_ctx(*args, **kwargs):
    from shoal.fsdp import share_comm_ctx

    return share_comm_ctx(*args, **kwargs)


def _new_fsdp1(cls: type, *args: Any, **kwargs: Any) -> Any:
    """``__new__`` of torch's FSDP1 from the first ``install`` on (Python cannot take a ``__new__`` out of a class again)."""
    if _installed is None:
        return object.__new__(cls)
    from shoal.fsdp1 import FullyShardedDataParallel

    if cls is not TorchFSDP1:
        raise InvalidArgument(
            f"{cls.__module__}.{cls.__qualname__} was derived from torch's FullyShardedDataParallel before shoal.fsdp.install()",
            hint="call install() before that module is imported, or start the program with python -m shoal.fsdp.run",
        )
    return FullyShardedDataParallel(*args, **kwargs)
