"""``reshard``: moves a sharded model and its optimizers to another mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shoal.exceptions import InvalidArgument
from shoal.fsdp._parameters.mesh import data_mesh, in_arenas
from shoal.fsdp._protect import AdoptedRank
from shoal.fsdp._reshard.change import Report, Request, change, check_arguments
from shoal.fsdp._reshard.contents import Contents
from shoal.fsdp._reshard.devices import change_on_devices


def reshard(
    model: nn.Module,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    mesh: DeviceMesh,
    *,
    old_owners: tuple[int, ...],
    old_index: int | None,
    adopted: Mapping[int, AdoptedRank] | None = None,
    keep_old: bool = False,
) -> Report:
    """Moves a sharded model and its optimizers to ``mesh``, in place. Modules, parameters and optimizers stay the same objects.

    Every rank of the old and of the new mesh calls it, between two steps. All are in the default process group, whose ranks ``old_owners``
    and ``mesh`` name. The process group of the old mesh may be gone.

    ``mesh``: the new mesh, also on ranks that leave. 1-D, or 2-D with replicas first.
    ``old_owners``: by rank of the old mesh, its rank in the default process group.
    ``old_index``: this process's rank on the old mesh; None for a newcomer. A newcomer has built the same model and optimizers on a mesh of
    its own. Its values, which may be on the meta device, are replaced, and so are its optimizers' options.

    ``adopted``: by rank of the old mesh, the shards of dead ranks that this process brings, settled at the committed step. ``old_owners``
    then names this process for each of them. If it is given, on all ranks, the step under way is dropped, and no rank waits for a dead one.

    ``keep_old``: keep the old mesh with its memory in ``Report.before``, so that this rank can go back.

    Rows go from the memory of their old owners to their new owners, with the fewest bytes possible. A rank holds its old rows, its new
    rows and four messages at most. Reduced gradients are dropped. Old and new memory exist side by side until every row has arrived with
    the right checksum. An error on any rank before that leaves all ranks on the old mesh.

    A model on devices moves through its copy in the host's memory (``HostCopy``): the copy's rows and states move as others do, and each
    rank copies its new ones to its device. After a death they are those of the last step that counts.

    Raises InvalidArgument for arguments that do not fit, for a newcomer with another model, and for unreduced gradients. Raises
    Unimplemented for subclasses and model parallel meshes, DataLoss for a wrong checksum, Unavailable if a rank has died.
    """
    chosen = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    data, recovers = data_mesh(mesh), adopted is not None
    request = Request(data, tuple(old_owners), old_index, dict(adopted or {}), recovers, keep_old)
    check_arguments(request)
    contents = Contents(model, chosen)
    if (lies := in_arenas(u.data for u in contents.units)) != data.in_arena:
        places = ("CPUs", "devices") if lies else ("devices", "CPUs")
        raise InvalidArgument(f"a model on {places[0]} cannot move to a mesh of {places[1]}", hint="save a checkpoint, and load it there")
    return change(model, chosen, request) if data.in_arena else change_on_devices(contents, request)
