"""Uploads batches to the device while the program computes (``torch_xla.distributed.parallel_loader``)."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any

from shoal._core.telemetry import Activity, at
from shoal.spmd import xla_model
from shoal.spmd._layout.errors import DivergedError
from shoal.spmd._layout.processes import loading, world
from shoal.spmd._marks.loading import InputSharding, Loaded, check_sharding, placed_on_device, verify

_END = object()


class MpDeviceLoader:
    """Iterates over ``loader`` and yields its batches on the device. A thread uploads up to ``device_prefetch_size`` batches ahead.
    ``input_sharding``: a ShardingSpec for all tensors (those of other rank stay whole), or one per key of batches that are dicts. Errors of
    the loader and of the upload are raised in place of the batch. Raises a TypeError for another ``input_sharding``."""

    def __init__(self, loader: Any, device: Any, input_sharding: InputSharding = None, device_prefetch_size: int = 8, **kwargs: Any):
        check_sharding(input_sharding)
        self._loader, self._ahead = loader, max(1, device_prefetch_size)
        self._parallel_loader_kwargs = {"input_sharding": input_sharding}  # some libraries set this attribute afterwards

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the wrapped loader: ``dataset``, ``batch_size``, ``sampler``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

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
                batches = iter(self._loader)
                while True:
                    with loading:
                        batch = next(batches, _END)
                    if batch is _END:
                        break
                    loaded: list[Loaded] | None = [] if world().verifies else None
                    if not put((placed_on_device(batch, self._parallel_loader_kwargs["input_sharding"], loaded), loaded, None)):
                        return
            except BaseException as error:  # the program's thread raises the error
                put((None, None, error))
                return
            put((None, None, StopIteration()))

        thread = threading.Thread(target=upload_all, name="shoal-spmd-loader", daemon=True)
        thread.start()
        try:
            while True:
                with at(Activity.LOADER):
                    batch, loaded, error = ready.get()
                if isinstance(error, StopIteration):
                    verify(None, "ends")
                    return
                if error is not None:
                    with contextlib.suppress(DivergedError):
                        verify(None, f"raises {type(error).__name__}: {error}")
                    raise error
                verify(loaded)
                yield batch
                xla_model.mark_step()  # the request for the next batch ends a step
        finally:
            left.set()
            thread.join()


class ParallelLoader:
    """The older interface of MpDeviceLoader. ``devices``: the logical device."""

    def __init__(self, cpu_loader: Any, devices: Any, input_sharding: InputSharding = None, device_prefetch_size: int = 8, **kwargs: Any):
        self._loader = MpDeviceLoader(cpu_loader, devices, input_sharding, device_prefetch_size)

    def per_device_loader(self, device: Any) -> MpDeviceLoader:
        return self._loader
