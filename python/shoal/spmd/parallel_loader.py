"""Batches on the device while the program computes (``torch_xla.distributed.parallel_loader``)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from shoal.exceptions import InvalidArgument
from shoal.spmd import runtime
from shoal.spmd._errors import MarkError
from shoal.spmd._marking import ShardingSpec, mark_freely, sharding_for
from shoal.spmd._sharding import Sharding
from shoal.spmd._tensor import Tensor, on_device

InputSharding = ShardingSpec | dict[str, ShardingSpec | None] | None


def upload(t: torch.Tensor, spec: ShardingSpec | None) -> Tensor:
    """A copy of a host tensor on the device, split as the spec says if it has as many dimensions, else whole."""
    made = on_device(t.detach().clone())
    n = runtime.global_runtime_device_count()
    if spec is None or not spec.can_apply(t):
        made._box.mark = Sharding.replicated(t.dim(), n)
        return made
    if spec.minibatch and t.shape[0] % n:
        raise MarkError(
            f"with minibatch=True the batch of {t.shape[0]} rows must be divisible by {n}, the devices of this process",
            hint="drop the last batch, or pad it",
        )
    mark_freely(made, sharding_for(spec.mesh, spec.partition_spec, t.dim()))
    return made


def _placed(batch: Any, sharding: InputSharding) -> Any:
    if isinstance(sharding, dict):
        if not isinstance(batch, dict):
            raise InvalidArgument(
                f"input_sharding has a spec per key, but the batch is of type {type(batch).__name__}",
                hint="give one ShardingSpec, or batches as dicts",
            )
        missing = [k for k in batch if k not in sharding]
        if missing:
            raise KeyError(f"input_sharding has no keys {missing}: give each a ShardingSpec, or None for whole")
        return {k: _placed(v, sharding[k]) for k, v in batch.items()}
    placed = tree_map(lambda a: upload(a, sharding) if isinstance(a, torch.Tensor) and not isinstance(a, Tensor) else a, batch)
    return list(placed) if type(placed) is tuple else placed


class MpDeviceLoader:
    """Iterates over ``loader`` and yields its batches on the device. A thread uploads up to ``device_prefetch_size`` batches ahead.
    ``input_sharding``: a ShardingSpec for all tensors (those of other rank stay whole), or one per key of batches that are dicts. Errors
    of the loader and of the upload are raised where the batch would have come."""

    def __init__(self, loader: Any, device: Any, input_sharding: InputSharding = None, device_prefetch_size: int = 8, **kwargs: Any):
        self._loader, self._ahead = loader, max(1, device_prefetch_size)
        self._parallel_loader_kwargs = {"input_sharding": input_sharding}  # libraries set it later

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        ready: queue.Queue = queue.Queue(self._ahead)
        left = threading.Event()

        def put(item: Any) -> bool:
            while not left.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def upload_all() -> None:
            try:
                for batch in self._loader:
                    if not put((_placed(batch, self._parallel_loader_kwargs["input_sharding"]), None)):
                        return
            except BaseException as error:  # raised in the program's thread
                put((None, error))
            else:
                put((None, StopIteration()))

        thread = threading.Thread(target=upload_all, name="shoal-spmd-loader", daemon=True)
        thread.start()
        try:
            while True:
                batch, error = ready.get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield batch
        finally:
            left.set()
            thread.join()


class ParallelLoader:
    """The older way to write an MpDeviceLoader. ``devices``: the logical device."""

    def __init__(self, cpu_loader: Any, devices: Any, input_sharding: InputSharding = None, device_prefetch_size: int = 8, **kwargs: Any):
        self._loader = MpDeviceLoader(cpu_loader, devices, input_sharding, device_prefetch_size)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        return self._loader
