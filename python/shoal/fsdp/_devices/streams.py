"""The streams of a device on which transfers run beside the program's computation, and the marks by which one waits for another.

As in FSDP2, gathers are packed on one stream and run on another, reductions run on a third, and those over replicas on a fourth. Copies of
gradients to the host have a fifth, so that the next reduction does not queue behind them, and copies of checkpoints a sixth. Events order
the streams; the host waits only for gradients and reads of rows in its own memory. No tensor needs ``record_stream``: memory returns to a
stream's pool only after that stream waits for the last use on another one. On the CPU there are no streams: collectives run in their
backend's threads, and the host waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from shoal.fsdp._devices.timeline import DeviceStamps, HostStamps, Timeline


class Mark(Protocol):
    """A point in the work of a stream, or of a backend's thread."""

    def wait(self) -> None:
        """Later work of the present stream begins after this point. Without streams, the host waits. May be called again."""


class Streams(Protocol):
    """The streams of one device. Entering one of the first six makes it the present stream."""

    pack: AbstractContextManager
    gather: AbstractContextManager
    reduce: AbstractContextManager
    replicas: AbstractContextManager
    copies: AbstractContextManager
    saves: AbstractContextManager
    timeline: Timeline
    asynchronous: bool  # collectives return before they are done; else the present stream orders what follows them

    def mark(self) -> Mark:
        """Returns the end of the present stream's work so far."""

    def of_event(self, event: Any) -> Mark:
        """Returns the mark of an event that the program has recorded."""

    def synchronize(self, mark: Mark) -> None:
        """The host waits for a mark."""

    def on(self, stream: Any) -> AbstractContextManager:
        """Enters a stream of the program."""

    def device_guard(self) -> AbstractContextManager:
        """Makes the device the current one. In a new thread that is device 0: calls of CUDA there would take memory of that device."""


class _Reached:
    def wait(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


REACHED: Mark = _Reached()


class WorkMark:
    """The end of a collective that runs in its backend's threads."""

    def __init__(self, work: Any):
        self._work = work
        self._then: Callable[[], None] | None = None

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
            self._work = None
            if self._then is not None:
                self._then()

    def then(self, call: Callable[[], None]) -> None:
        """Calls ``call`` once the collective has ended, in a thread of its backend; or after ``wait``, if its work has no future, as gloo's
        reduce_scatter."""
        try:
            self._work.get_future().add_done_callback(lambda _: call())
        except RuntimeError:
            self._then = call


class HostStreams:
    """The CPU: operations run at once, in the program's order."""

    asynchronous = True

    def __init__(self) -> None:
        self.pack = self.gather = self.reduce = self.replicas = self.copies = self.saves = nullcontext()
        self.timeline = Timeline(HostStamps())

    def mark(self) -> Mark:
        return REACHED

    def of_event(self, event: Any) -> Mark:
        (event.synchronize if hasattr(event, "synchronize") else event.wait)()
        return REACHED

    def synchronize(self, mark: Mark) -> None:
        mark.wait()

    def on(self, stream: Any) -> AbstractContextManager:
        return nullcontext()

    def device_guard(self) -> AbstractContextManager:
        return nullcontext()


class _Event:
    def __init__(self, device: torch.device, handle: Any, event: Any):
        self._device, self._handle, self._event = device, handle, event

    def wait(self) -> None:
        self._handle.current_stream(self._device).wait_event(self._event)

    def synchronize(self) -> None:
        self._event.synchronize()


class _Stream(threading.local):
    """A stream as a context that each thread can enter again and again."""

    def __init__(self, handle: Any, stream: Any):
        self._handle, self._stream = handle, stream
        self._entered: list[AbstractContextManager] = []

    def __enter__(self) -> None:
        context = self._handle.stream(self._stream)
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class DeviceStreams:
    """Streams of a CUDA device. As in FSDP2, those of shards have high priority, so that copies do not queue behind computation."""

    asynchronous = False

    def __init__(self, device: torch.device):
        self._device, self._handle = device, torch.get_device_module(device)
        self.pack, self.gather, self.reduce = (_Stream(self._handle, self._handle.Stream(device, priority=-1)) for _ in range(3))
        self.replicas, self.copies, self.saves = (_Stream(self._handle, self._handle.Stream(device)) for _ in range(3))
        self.timeline = Timeline(DeviceStamps(device, self._handle))

    def mark(self) -> Mark:
        event = self._handle.Event()
        event.record(self._handle.current_stream(self._device))
        return self.of_event(event)

    def of_event(self, event: Any) -> Mark:
        return _Event(self._device, self._handle, event)

    def synchronize(self, mark: Mark) -> None:
        with self.device_guard():
            mark.synchronize()

    def on(self, stream: Any) -> AbstractContextManager:
        return self._handle.stream(stream)

    def device_guard(self) -> AbstractContextManager:
        return self._handle.device(self._device)


def open_streams(device: torch.device) -> Streams:
    return HostStreams() if device.type == "cpu" else DeviceStreams(device)


def pinned_like(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(t.shape, dtype=t.dtype, pin_memory=True)


class Transfers:
    """The transfers of one device: its streams, and the memory that they share with the program's stream.

    All models on the device share them, so that the order of their transfers is the program's.
    """

    def __init__(self, streams: Streams):
        self.streams = streams
        self.rows: Mark = REACHED  # the program's writes to rows, which gathers have to see
        self.packed: Mark = REACHED  # the last gather's reads of rows
        self._read: tuple[Mark, Any] | None = None  # the buffers of a forward's last gather, which ``unpacked`` frees later
        self._reduced: list[Mark] = []
        self._on_host: list[Mark] = []
        self._copied: list[tuple[Mark, torch.Tensor, Sequence[AbstractContextManager]]] = []  # gradients, until their copies have ended

    def order_rows(self, event: Any = None) -> None:
        """Gathers from now on see rows as the present stream leaves them, or as they are at the program's ``event``."""
        self.rows = self.streams.mark() if event is None else self.streams.of_event(event)

    def wait_for_reads(self) -> None:
        """Waits on the host until gathers have read the rows in its memory, because the program is going to write to them."""
        self.streams.synchronize(self.packed)
        self.packed = REACHED

    # ---- memory ----

    def unpacked(self, buffer: Any) -> None:
        """Frees the buffer of a gather, or several, from which the present stream has taken the parameters.

        In forward the buffer is kept until the next gather is unpacked: freeing it makes the streams of gathers wait for this unpacking,
        which would delay the packing of the next gather. In backward it is freed at once, as in FSDP2.
        """
        if self.streams.asynchronous:
            return  # the host has unpacked the buffer already
        before, self._read = self._read, None
        read = (self.streams.mark(), buffer)
        if torch._C._current_graph_task_id() == -1:
            self._read = read
        else:
            self._free(*read)
        if before is not None:
            self._free(*before)

    def _free(self, read: Mark, buffer: Any) -> None:
        for stream in (self.streams.pack, self.streams.gather):
            with stream:
                read.wait()
        del buffer

    def end_forward(self) -> None:
        """Frees the buffer that the last gather of a forward has kept."""
        if self._read is not None:
            self._free(*self._read)
            self._read = None

    # ---- the end of reductions ----

    def accumulated(self) -> None:
        """Called when the present stream has accumulated gradients: ``finish`` makes later work wait for them."""
        self._reduced.append(self.streams.mark())

    def used(self, hook_stream: Any = None) -> None:
        """Called when the present stream has used accumulated gradients: only then may other streams use their memory again."""
        if self.streams.asynchronous:
            return
        mark = self.streams.mark()
        for stream in (self.streams.reduce, self.streams.replicas, *(() if hook_stream is None else (self.streams.on(hook_stream),))):
            with stream:
                mark.wait()

    def to_host(
        self,
        gradient: torch.Tensor,
        pinned: bool,
        allocated_on: Sequence[AbstractContextManager],
        awaited: bool = True,
        model: int | None = None,
    ) -> torch.Tensor:
        """Copies to the host's memory. With ``pinned`` memory the copy runs beside what follows, until ``finish`` if it is ``awaited``.
        ``allocated_on``: the streams to whose pools the gradient's memory may return. ``model``: the number of its ``Root``."""
        if not pinned or self.streams.asynchronous:
            for mark in self._on_host:  # the host may add this gradient to one whose copy is under way
                self.streams.synchronize(mark)
            return gradient.to("cpu")
        out = self.copy_to_host(gradient, "gradients", model)
        with self.streams.copies:
            mark = self.streams.mark()
        if awaited:
            self._on_host.append(mark)
        self._copied.append((mark, gradient, allocated_on))
        return out

    def copy_to_host(self, t: torch.Tensor, label: str = "step", model: int | None = None) -> torch.Tensor:
        """Copies to pinned memory on the stream of copies. The caller waits for that stream, and keeps ``t`` until then."""
        if self.streams.asynchronous:
            return t.to("cpu")
        out = pinned_like(t)
        computed = self.streams.mark()
        with self.streams.copies:
            computed.wait()
            self.streams.timeline.timed("copies", "copy", label, lambda: out.copy_(t, non_blocking=True), model)
        return out

    def free_copied(self) -> None:
        """Frees gradients that reductions have copied to the host. The next reduction begins with it, when most copies have ended."""
        for mark, _, allocated_on in self._copied:
            for stream in allocated_on:
                with stream:
                    mark.wait()
        self._copied.clear()

    def finish(self) -> None:
        """Later work of the present stream, and of the host where gradients lie there, sees all accumulated gradients."""
        for mark in self._reduced:
            mark.wait()
        for mark in self._on_host:
            self.streams.synchronize(mark)
        self.free_copied()
        self._reduced.clear()
        self._on_host.clear()


class AllTransfers:
    """This process's transfers by device. ``opens`` is an attribute, so that tests can take streams of their own."""

    def __init__(self) -> None:
        self.opens: Callable[[torch.device], Streams] = open_streams
        self._transfers: dict[torch.device, Transfers] = {}

    def of(self, device: torch.device) -> Transfers:
        if device not in self._transfers:
            self._transfers[device] = Transfers(self.opens(device))
        return self._transfers[device]

    def forget(self) -> None:
        self._transfers.clear()


transfers = AllTransfers()
