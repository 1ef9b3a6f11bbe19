"""Snapshots of a rank's part of a model in memory, for saves that run beside the training.

Parameters of sharded models and optimizer states change only in write windows. So a thread copies them while the next step computes,
and the next write waits for what is not copied yet. Devices copy their values themselves (``Staging``).
"""

from __future__ import annotations

import threading
import time

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shoal.checkpoint._memory import Buffer, copy_in, tensor_in
from shoal.checkpoint._shards import Layout, Part
from shoal.exceptions import InvalidArgument
from shoal.fsdp._devices.streams import Mark, transfers
from shoal.fsdp._engine.writers import before_writes

_RANGE = 16 << 20  # bytes copied at once: two threads share the ranges
_CHECK_S = 0.05  # between two looks at ranges that another thread copies
_active: list[Snapshot] = []
_spare: list[Buffer] = []  # memory of earlier snapshots: new memory would cost as much time as the copy


class Snapshot:
    """The files of one save in memory. Copies what may change at any time in the constructor, and the rest by ``settle``. ``complete``
    waits for devices, too."""

    def __init__(self, layouts: list[Layout]):
        self.images = [_take(layout.num_bytes) for layout in layouts]
        self.num_bytes = sum(layout.num_bytes for layout in layouts)
        self.stall_s = 0.0
        self._lock = threading.Lock()
        self._ranges: list[tuple[Buffer, int, torch.Tensor, int, int]] = []
        self._left: dict[int, tuple] = {}  # by id, the ranges that are not copied yet; those under way are not in _ranges
        self._copied = threading.Event()
        self._watched: list[tuple[Part, int]] = []
        self._staged: dict[torch.device, Staging] = {}
        self.error: Exception | None = None
        for layout, image in zip(layouts, self.images, strict=True):
            image.view[: len(layout.header)] = layout.header
            for part, at in zip(layout.parts, layout.at, strict=True):
                self._add(part, image, at)
        self._left = {id(r): r for r in self._ranges}
        for staging in self._staged.values():
            staging.begin()
        if self._left or self._staged:
            _active.append(self)
        if not self._left:
            self._copied.set()

    def _add(self, part: Part, image: Buffer, at: int) -> None:
        device = None if part.counted is None else part.counted.device
        if device is not None and not transfers.of(device).streams.asynchronous:
            if device not in self._staged:
                self._staged[device] = Staging(device)
            self._staged[device].add(part, image, at)
            return
        source = part.source
        lazy = part.in_window and source is not None and source.device.type == "cpu"
        lazy = lazy and source.is_contiguous() and not part.counted.is_inference()
        if not lazy:
            copy_in(image, at, part.fetch(), 0, part.num_bytes)
            return
        self._watched.append((part, part.counted._version))
        for begin in range(0, part.num_bytes, _RANGE):
            end = min(begin + _RANGE, part.num_bytes)
            self._ranges.append((image, at + begin, source, begin, end))

    def settle(self) -> None:
        """Before a write: copies what no thread has copied yet, and returns when all is copied. Later work of the present stream waits for
        the devices' copies. After an exception, such as Ctrl-C, another thread copies the range again."""
        for staging in self._staged.values():
            staging.order_writes()
        self._copy()

    def complete(self) -> None:
        """The host waits until all is copied."""
        try:
            self._copy()
            for staging in self._staged.values():
                staging.complete()
                if staging.written is not None:
                    self.error = _written(staging.written)
        finally:
            if self in _active:
                _active.remove(self)

    def _copy(self) -> None:
        while not self._copied.is_set():
            taken = None
            try:
                with self._lock:
                    if not self._left:
                        self._finish()
                        return
                    if self._ranges:
                        taken = self._ranges[-1]  # before the pop, which a signal may follow
                        self._ranges.pop()
                if taken is None:
                    self._copied.wait(_CHECK_S)  # not for ever: a thread that is interrupted puts its range back
                    continue
                copy_in(*taken)
                with self._lock:
                    self._left.pop(id(taken), None)
            except BaseException:
                with self._lock:
                    if taken is not None and id(taken) in self._left and all(r is not taken for r in self._ranges):
                        self._ranges.append(taken)
                raise

    def _finish(self) -> None:
        written = [p.name for p, version in self._watched if p.counted._version != version]
        if written:
            self.error = _written(written[0])
        self._watched.clear()
        if self in _active and not self._staged:
            _active.remove(self)
        self._copied.set()

    def release(self) -> None:
        """Keeps the memory for the next snapshot, unless a device may still write to it."""
        if all(s.completed for s in self._staged.values()):
            _spare.extend(self.images)
        self.images = []


class Staging:
    """The copies from one device, on a stream of their own beside the training.

    The stream waits for the work that the program has begun, such as the last update, and copies to pinned memory. A later write waits for
    the copies on the device, so that only the save's thread waits on the host. ``written``: the name of a tensor that changed meanwhile
    without a notice.
    """

    def __init__(self, device: torch.device):
        self._streams = transfers.of(device).streams
        self._sources: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._watched: list[tuple[Part, int]] = []
        self._lock = threading.Lock()
        self._copied: Mark | None = None
        self.written: str | None = None
        self.completed = False

    def add(self, part: Part, image: Buffer, at: int) -> None:
        """Adds a copy. The present stream copies at once a value that may be written without a notice: no later work overtakes it."""
        source = part.counted.detach()
        if not source.numel():
            return
        if source.is_cuda:
            image.pin()
        into = tensor_in(image, at, source.numel(), source.dtype).view(source.shape)
        if not part.in_window or part.counted.is_inference():
            into.copy_(source, non_blocking=True)
        else:
            self._sources.append((into, source))
            self._watched.append((part, part.counted._version))

    def begin(self) -> None:
        updated = self._streams.mark()
        with self._streams.saves:
            updated.wait()
            self._streams.timeline.timed("copies", "copy", "checkpoint", self._copy)
            self._copied = self._streams.mark()

    def _copy(self) -> None:
        for into, source in self._sources:
            into.copy_(source, non_blocking=True)

    def order_writes(self) -> None:
        """Makes later work of the present stream wait for the copies, because it may write to their sources."""
        if not self.completed:
            self._check()
            self._copied.wait()

    def complete(self) -> None:
        """The host waits until all is copied. Then the sources' memory may be freed."""
        self._streams.synchronize(self._copied)
        self._check()
        self.completed = True
        self._sources.clear()

    def _check(self) -> None:
        """Called before the first write with a notice, and at the end: finds a tensor that was written without one."""
        with self._lock:
            changed = [p.name for p, version in self._watched if p.counted._version != version]
            self.written = self.written or next(iter(changed), None)
            self._watched.clear()


def _written(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} was written while it was saved, outside of an optimizer's step and of a write window",
        reason="WrittenWhileSaved",
        hint="call wait() before such a write, or write inside `with shoal.fsdp.write(model)`",
    )


def _take(num_bytes: int) -> Buffer:
    fitting = [b for b in _spare if num_bytes <= len(b) <= 2 * num_bytes + (1 << 20)]
    if not fitting:
        _spare.clear()
        return Buffer(num_bytes)
    best = min(fitting, key=len)
    _spare.remove(best)
    return best


def settle_all() -> None:
    """Waits until no snapshot needs the present values any more; for devices, the present stream waits."""
    for snapshot in list(_active):
        begin = time.perf_counter()
        snapshot.settle()
        snapshot.stall_s += time.perf_counter() - begin


before_writes(settle_all)
register_optimizer_step_pre_hook(lambda *_: settle_all())
