"""Batches on their way from the host to the device: their shardings, and the check that all processes load the same."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from shoal.exceptions import InvalidArgument
from shoal.spmd._engine.box import Box
from shoal.spmd._engine.tensor import Tensor, on_device
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.errors import DivergedError, MarkError
from shoal.spmd._layout.processes import digest, world
from shoal.spmd._layout.sharding import Sharding, parts_of
from shoal.spmd._marks.marking import ShardingSpec, mark_freely, sharding_for

InputSharding = ShardingSpec | dict[str, ShardingSpec | None] | None
# The description of a loaded tensor: dtype and shape, and a checksum if all processes must load the same values.
Loaded = tuple[str, int | None]


class _SpecError(InvalidArgument, TypeError):
    """Error for an input_sharding that is neither a ShardingSpec nor a dict of them."""


def check_sharding(sharding: Any) -> None:
    wrong = next(
        (s for s in (sharding.values() if isinstance(sharding, dict) else [sharding]) if not isinstance(s, ShardingSpec | None)), None
    )
    if wrong is not None:
        raise _SpecError(
            f"input_sharding {'has a value' if isinstance(sharding, dict) else 'is'} of type {type(wrong).__name__}",
            hint="give one ShardingSpec for all tensors, or a dict with one (or None) per key of batches that are dicts",
        )


def upload(t: torch.Tensor, spec: ShardingSpec | None) -> Tensor:
    """Returns a device copy of a host tensor, with the spec's sharding if the number of dimensions fits, else whole."""
    if spec is not None and spec.minibatch and spec.can_apply(t):
        return _joined(t, spec)
    loaded = on_device(t.detach().clone())
    if spec is None or not spec.can_apply(t):
        loaded._box.mark = Sharding.replicated(t.dim(), world().num_devices)
    else:
        mark_freely(loaded, sharding_for(spec.mesh, spec.partition_spec, t.dim()))
    return loaded


def _joined(t: torch.Tensor, spec: ShardingSpec) -> Tensor:
    """Returns the device tensor of the whole batch. Each process has loaded its rows, which come behind the rows of the processes before
    it."""
    w = world()
    rows = t.shape[0]
    if rows % len(w.devices):
        raise MarkError(
            "When minibatch is configured, the per-host batch size must be divisible by local runtime device count. Per host input data "
            f"shape = {t.shape}, local_runtime_device_count = {len(w.devices)}",
            hint="drop the last batch, or pad it",
        )
    shape = (rows * w.num_processes, *t.shape[1:])
    sharding = sharding_for(spec.mesh, spec.partition_spec, t.dim())
    begin, cuts, parts = w.rank * rows, parts_of(shape, sharding), {}
    for position in w.held(sharding):
        first, *rest = cuts[position]
        if first.start < begin or first.stop > begin + rows:
            raise MarkError(
                f"process {w.rank} has rows {begin} to {begin + rows} of the batch, its devices hold rows {first.start} to {first.stop}",
                hint="with minibatch=True the first dimension is split over all processes in their order",
            )
        parts[position] = t[(slice(first.start - begin, first.stop - begin), *rest)].clone(memory_format=torch.contiguous_format)
    loaded = Tensor(Box(Array(shape, t.dtype, sharding, parts)))
    loaded._box.mark = sharding
    return loaded


def placed_on_device(batch: Any, sharding: InputSharding, loaded: list[Loaded] | None = None) -> Any:
    """Uploads a batch. ``loaded``, if given, gets a description of each tensor."""
    check_sharding(sharding)
    if isinstance(sharding, dict):
        if not isinstance(batch, dict):
            raise InvalidArgument(
                f"input batch should be a dict when input sharding is a dict. It is of type {type(batch).__name__}",
                hint="give one ShardingSpec, or batches as dicts",
            )
        missing = [k for k in batch if k not in sharding]
        if missing:
            raise KeyError(f"Keys: {missing} are missing from input_sharding. Give each a ShardingSpec, or None for whole")
        return {k: placed_on_device(v, sharding[k], loaded) for k, v in batch.items()}

    def place(a: Any) -> Any:
        if not isinstance(a, torch.Tensor) or isinstance(a, Tensor):
            return a
        if loaded is not None:
            part = sharding is not None and sharding.minibatch and sharding.can_apply(a)
            loaded.append((f"{str(a.dtype).removeprefix('torch.')} of shape {tuple(a.shape)}", None if part else digest(a)))
        return upload(a, sharding)

    placed = tree_map(place, batch)
    return list(placed) if type(placed) is tuple else placed


def verify(loaded: list[Loaded] | None, end: str | None = None) -> None:
    """Compares the batches that all processes have loaded, and why a process has none (``end``). Every process must call it. Raises
    DivergedError on all processes if these differ."""
    if not world().verifies:
        return
    found = world().passed((end, loaded))
    usual = max(found, key=lambda f: (found.count(f), -found.index(f)))
    rank = next((r for r, f in enumerate(found) if f != usual), None)
    if rank is None:
        return
    (end, loaded), (usual_end, usual_loaded) = found[rank], usual
    if end != usual_end:
        raise DivergedError(
            f"on rank {rank} the loader {end or 'continues'}, on other ranks it {usual_end or 'continues'}",
            hint="every process gets as many batches, whole ones or its rows of them: for example with drop_last=True",
        )
    for (what, of), (usual_what, usual_of) in zip(loaded or [], usual_loaded or [], strict=False):
        if what != usual_what:
            raise DivergedError(f"a tensor of a batch of the loader is {what} on rank {rank} and {usual_what} on other ranks")
        if of != usual_of:
            break
    raise DivergedError(
        f"a batch of the loader (without minibatch=True every process loads the whole batch) differs on rank {rank} from the other ranks",
        hint="every process runs the same program: seed alike, and load the same values",
    )
