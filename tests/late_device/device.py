"""The late device: its streams, its memory, and the program's operators on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from late_device.memory import POISON, Detector, Faults, Memory, Use, place
from late_device.queues import PRESENT, START, STREAMS, Clock, Helper, Operation, Queues

_K = torch._C.DispatchKey
# Operations run long after their call, so they see none of the call's modes: autograd, autocast, and the recording itself.
_RAW = torch._C.DispatchKeySet(_K.Python)
for _key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView", "AutocastCPU", "PythonTLSSnapshot"):
    _RAW = _RAW | torch._C.DispatchKeySet(getattr(_K, _key))
_POISONED = bytes([POISON])


class _Raw:
    """Within it, operators run as they are. Each use is an object of its own, because the guards are entered once."""

    __slots__ = ("_inference", "_keys")

    def __enter__(self) -> None:
        self._inference = torch._C._InferenceMode(False)
        self._inference.__enter__()  # keeps the grad mode, and its exit restores that
        torch._C._set_grad_enabled(False)
        self._keys = torch._C._ExcludeDispatchKeyGuard(_RAW)
        self._keys.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._keys.__exit__(*error)
        self._inference.__exit__(*error)


class LateDevice:
    """As a context: operators of this thread are put into the queues of the present stream. Leaving runs all, and raises Faults."""

    def __init__(self, seed: int, rank: int = 0, eager: float | None = None):
        self.queues, self.detector = Queues(seed, rank, eager), Detector()
        self.current = PRESENT
        self.operators = 0
        self._memories: dict[int, tuple[weakref.ref, Memory]] = {}
        self._freed: dict[int, list[Memory]] = {}
        self._open = ExitStack()
        self._is_open = False

    def __enter__(self) -> LateDevice:
        from late_device.mode import LateMode

        self._is_open = True
        self._open.callback(self._close)
        if torch.distributed.is_initialized():
            self._open.callback(Helper(self.queues, self.raw).end)
        self._open.enter_context(_host_reads(self))
        self._open.enter_context(_storages(self))
        self._open.enter_context(LateMode(self))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._open.close()
        faults = self.detector.faults
        if faults:
            more = f"\n... and {len(faults) - 10} more" if len(faults) > 10 else ""
            raise Faults("\n".join(faults[:10]) + more) from error

    def _close(self) -> None:
        try:
            with self.raw():
                self.queues.run_all()
        finally:
            self._is_open = False

    raw = _Raw

    # ---- operations ----

    def issue(
        self, name: str, reads: Sequence[Memory], writes: Sequence[Memory], run: Callable[[], None], collective: bool = False
    ) -> Operation:
        at, stream = place(), STREAMS[self.current]

        def what() -> str:
            return f"{name} at {at()} on stream {stream}"

        def tried() -> None:
            try:
                run()
            except Exception as e:
                self.detector.report(f"{what()} failed: {e}")

        self.operators += 1
        op = self.queues.add(self.current, name, tried, collective)
        use = Use(op.stream, op.position, what)
        for m in reads:
            self.detector.read(m, op, use)
            if m.last is not None and not m.last.done:
                op.after.append(m.last)
        for m in writes:
            self.detector.write(m, op, use)
            m.host = False
            if m.last is not None and not m.last.done:
                op.after.append(m.last)
        due = self.queues.due_collective() if collective else None
        if due is not None:
            self.run_through(due)
        self.lag()
        return op

    def lag(self) -> None:
        if self.queues.hurries():
            with _Raw():
                self.queues.lag()

    def mark(self) -> Clock:
        self.lag()
        return self.queues.clock(self.current).copy()

    def synchronize(self, mark: Clock | None = None) -> None:
        """The host waits for a mark, or for the present stream."""
        with _Raw():
            self.queues.host_waits(self.queues.clock(self.current).copy() if mark is None else mark)

    def run_through(self, op: Operation) -> None:
        with _Raw():
            self.queues.run_through(op)

    def run_all(self) -> None:
        with _Raw():
            self.queues.run_all()

    # ---- memory ----

    def memory(self, storage: torch.UntypedStorage) -> Memory:
        known = self._memories.get(storage._cdata)
        if known is not None and known[0]() is storage:
            return known[1]
        m = Memory(_of_host, None, PRESENT, owned=False, host=True)
        self._memories[storage._cdata] = weakref.ref(storage), m
        return m

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, name: str) -> torch.Tensor:
        """Returns a tensor of poison, for a result of the operation ``name`` that is issued next."""
        count = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        raw = bytearray(_POISONED) * max(count * dtype.itemsize, 1)
        keep = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        storage = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
        at, stream = place(), STREAMS[self.current]

        def what() -> str:
            return f"the {str(dtype)[6:]}{list(size)} of {name} at {at()} on stream {stream}"

        m = Memory(what, keep, self.current, owned=True, host=False, numel=len(raw))
        key = storage._cdata
        self._memories[key] = weakref.ref(storage, lambda _: self._drop(m, key)), m
        self._take_freed(what)
        return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)

    def _drop(self, m: Memory, key: int) -> None:
        """Python has dropped the last reference."""
        self._memories.pop(key, None)
        if self._is_open and not m.freed:
            self._freed.setdefault(m.stream, []).append(m)

    def _take_freed(self, what: Callable[[], str]) -> None:
        """The present stream allocates: its freed memory is written again."""
        clock = self.queues.clock(self.current)
        for m in self._freed.pop(self.current, ()):
            self.detector.reuse(m, clock, what)
            self._poison(m, self.current)

    def _poison(self, m: Memory, stream: int) -> None:
        op = self.queues.add(stream, "poison", lambda keep=m.keep: _fill(keep))
        if m.last is not None and not m.last.done:
            op.after.append(m.last)
        m.last = op

    def resize(self, storage: torch.UntypedStorage, size: int) -> bool:
        """Frees memory, or allocates it again. Returns False if it is not the device's."""
        m = self.memory(storage)
        if not m.owned:
            return False
        assert size in (0, m.numel), f"{m.name} changes its size from {m.numel} to {size}"
        if size == 0 and not m.freed:
            was = Memory(m.describe, m.keep, m.stream, owned=True, host=False, writer=m.writer, readers=m.readers, last=m.last)
            self._freed.setdefault(m.stream, []).append(was)
            m.freed, m.writer, m.readers = True, None, {}
        elif size != 0 and m.freed:
            self._take_freed(m.describe)
            # Other memory in truth. Here it is the same, so what is still pending on the old one runs before.
            m.freed, m.stream = False, self.current
            m.last = self._pool_poison(m)
            at, stream = place(), STREAMS[self.current]
            m.writer = Use(m.stream, m.last.position, lambda: f"its allocation at {at()} on stream {stream}")
        return True

    def _pool_poison(self, m: Memory) -> Operation:
        op = self.queues.add(self.current, "allocate", lambda keep=m.keep: _fill(keep))
        for old in (o for pool in self._freed.values() for o in pool if o.keep is m.keep):
            op.after += [o for o in [old.last] if o is not None and not o.done]
        return op

    def size(self, storage: torch.UntypedStorage) -> int | None:
        known = self._memories.get(storage._cdata)
        return 0 if known is not None and known[0]() is storage and known[1].freed else None


def _of_host() -> str:
    return "a tensor of the host"


def _fill(keep: torch.UntypedStorage) -> None:
    keep.fill_(POISON)


@contextmanager
def _storages(device: LateDevice) -> Iterator[None]:
    kind = torch.UntypedStorage
    resize, size = kind.resize_, kind.size

    def late_resize(self: torch.UntypedStorage, to: int) -> Any:
        return self if device.resize(self, to) else resize(self, to)

    def late_size(self: torch.UntypedStorage) -> int:
        known = device.size(self)
        return size(self) if known is None else known

    kind.resize_, kind.size = late_resize, late_size
    try:
        yield
    finally:
        del kind.resize_, kind.size


@contextmanager
def _host_reads(device: LateDevice) -> Iterator[None]:
    """The host reads values of a tensor without an operator."""
    names = ("numpy", "tolist", "__array__", "__reduce_ex__", "__dlpack__")
    before = {name: torch.Tensor.__dict__.get(name) for name in names}

    def late(name: str) -> Callable:
        function = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            device.synchronize()
            return function(self, *args, **kwargs)

        return read

    for name in names:
        setattr(torch.Tensor, name, late(name))
    try:
        yield
    finally:
        for name, function in before.items():
            if function is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, function)


class _Mark:
    def __init__(self, device: LateDevice, clock: Clock):
        self.device, self.clock = device, clock

    def wait(self) -> None:
        self.device.queues.wait(self.device.current, self.clock)


class _Stream:
    def __init__(self, device: LateDevice, index: int):
        self.device, self.index = device, index
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(self.device.current)
        self.device.current = self.index

    def __exit__(self, *error: Any) -> None:
        self.device.current = self._before.pop()


class LateStreams:
    """Implements ``Streams``."""

    asynchronous = False

    def __init__(self, device: LateDevice):
        from internals.fsdp import HostStamps, Timeline

        self.device, self.timeline = device, Timeline(HostStamps())
        others = [_Stream(device, stream) for stream in range(PRESENT + 1, len(STREAMS))]
        self.pack, self.gather, self.reduce, self.replicas, self.copies, self.saves = others

    def mark(self) -> _Mark:
        return _Mark(self.device, self.device.mark())

    def of_event(self, event: Any) -> _Mark:
        if isinstance(event, _Mark):
            return event
        (event.synchronize if hasattr(event, "synchronize") else event.wait)()
        return _Mark(self.device, START)

    def synchronize(self, mark: _Mark) -> None:
        self.device.synchronize(mark.clock)

    def on(self, stream: Any) -> AbstractContextManager:
        return stream if isinstance(stream, _Stream) else nullcontext()

    def device_guard(self) -> AbstractContextManager:
        return nullcontext()
