"""Makes an unchanged ``from torch.distributed.fsdp import fully_shard`` ours."""

from __future__ import annotations

import sys

from shoal.fsdp._fully_shard import fully_shard
from shoal.fsdp._module import register_fsdp_forward_method, share_comm_ctx

_OURS = {"fully_shard": fully_shard, "register_fsdp_forward_method": register_fsdp_forward_method, "share_comm_ctx": share_comm_ctx}
_WHERE = (
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
)
_theirs: dict[tuple[str, str], object] = {}


def install() -> None:
    """From now on ``torch.distributed.fsdp.fully_shard`` is Shoal's, for whoever imports it after this call.

    ``register_fsdp_forward_method`` and ``share_comm_ctx``, too; ``FSDPModule`` stays torch's, of which a module that Shoal sharded is an
    instance. Call it before other imports: a name that a module has imported already stays what it was. ``uninstall`` takes it back.
    """
    import torch.distributed._composable.fsdp  # noqa: F401  old path of the same names

    for where in _WHERE:
        module = sys.modules.get(where)
        for name, ours in _OURS.items():
            theirs = getattr(module, name, None)
            if callable(theirs) and theirs is not ours:
                _theirs[where, name] = theirs
                setattr(module, name, ours)


def uninstall() -> None:
    """Gives torch its own functions back."""
    for (where, name), theirs in _theirs.items():
        setattr(sys.modules[where], name, theirs)
    _theirs.clear()
