"""The ranks that save or load a checkpoint together: their rows, agreement on errors, and names of tensors."""

from __future__ import annotations

import errno
import hashlib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard

from shoal.exceptions import InvalidArgument, ResourceExhausted, ShoalError, TaskError, Unimplemented

T = TypeVar("T")


class Ranks:
    """The ranks over which a model is sharded; a single rank for a plain model."""

    def __init__(self, tensors: Iterable[torch.Tensor]):
        meshes = {t.device_mesh for t in tensors if isinstance(t, DTensor)}
        if any(m.ndim != 1 for m in meshes) or len({tuple(m.mesh.tolist()) for m in meshes if m.ndim == 1}) > 1:
            raise Unimplemented("a model over several meshes cannot be saved or loaded", hint="shard all of it over one 1-D mesh")
        self.group = next(iter(meshes)).get_group() if meshes else None
        self.rank = dist.get_rank(self.group) if self.group is not None else 0
        self.size = dist.get_world_size(self.group) if self.group is not None else 1

    def rows(self, num_rows: int) -> tuple[int, int]:
        """This rank's rows (begin, end), as torch.chunk(dim=0) divides them."""
        piece = -(-num_rows // self.size)
        return min(self.rank * piece, num_rows), min((self.rank + 1) * piece, num_rows)

    def agree(self, action: Callable[[], T]) -> T:
        """Runs ``action`` and returns its result. Collective: an error on one rank is raised on all. An error that is not Shoal's is a
        TaskError of its class on the other ranks."""
        result, error = None, None
        try:
            result = action()
        except Exception as raised:
            error = raised
        sent = error
        if error is not None and not isinstance(error, ShoalError):
            sent = TaskError(error, "".join(traceback.format_exception(error)), "a checkpoint's save or load", os.getpid())
        for rank, other in enumerate(self.gather(sent)):
            if error is None and other is not None:
                other.context = (*other.context, f"rank {rank}")
                raise other.as_instance_of_cause() if isinstance(other, TaskError) else other
        if error is not None:
            raise error
        return result

    def gather(self, value: Any) -> list[Any]:
        """Gathers every rank's value, by rank."""
        if self.group is None:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)  # pickles between the ranks of one job, never on disk
        return values


def local(t: torch.Tensor, name: str) -> tuple[torch.Tensor, bool]:
    """Returns (this rank's part of a tensor, True if it is sharded). Raises Unimplemented for placements other than Shard(0)."""
    if not isinstance(t, DTensor):
        return t.detach(), False
    if tuple(t.placements) != (Shard(0),):
        raise Unimplemented(f"{name} is placed as {t.placements}", hint="checkpoints hold tensors with Shard(0) and ordinary ones")
    return t.detach().to_local(), True


def elsewhere(device: torch.device, move: str) -> str:
    """Returns the hint for a tensor that is not on the CPU. ``move``: the call that moves the model there."""
    if device.type == "xla":
        return "shoal.spmd.checkpoint saves and loads tensors of shoal.spmd's device: CheckpointManager, or its planners"
    return f"move the model to the CPU: {move}"


def named_tensors(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns (parameters, as the optimizer holds them, and persistent buffers by name; further name -> name of tied tensors)."""
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, t in model.state_dict(keep_vars=True).items():
        if not isinstance(t, torch.Tensor):
            raise Unimplemented(f"{name} in the model's state dict is a {type(t).__name__}, not a tensor", hint="pass it in state=")
        if id(t) in names:
            tied[name] = names[id(t)]
        else:
            names[id(t)] = name
            tensors[name] = t
    return tensors, tied


def parameter_names(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """Returns the model's names of the optimizer's parameters, by parameter group. Raises InvalidArgument for a parameter of another
    model."""
    names = {id(t): name for name, t in tensors.items()}
    try:
        return [[names[id(p)] for p in g["params"]] for g in optimizer.param_groups]
    except KeyError:
        raise InvalidArgument(
            "the optimizer has a parameter that is not the model's", hint="make the optimizer of model.parameters(), after fully_shard"
        ) from None


def checksum(t: torch.Tensor) -> str:
    return hashlib.sha256(t.contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()


@contextmanager
def writing(path) -> Iterator[None]:
    """Converts OSError, while a checkpoint is written to ``path``, into ResourceExhausted or InvalidArgument."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(f"there is no space for the checkpoint in {path}", hint="free some, or save elsewhere") from None
        raise InvalidArgument(
            f"the checkpoint cannot be written to {path}: {error.strerror or error}", reason="CheckpointUnwritable"
        ) from None
