"""Transport of bytes between ranks without shared memory: gloo, in a process group of its own, with a ledger in the ranks' store.

A rank whose wait takes long writes its position to the store and reads the others'. It can then name the late rank, and ranks that wait in
different calls detect that within seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions, AllToAllOptions, BroadcastOptions

from shoal._printable import say
from shoal.exceptions import DeadlineExceeded, InvalidArgument, ShoalError, Unavailable, from_error

CHECK_S = 1.5  # seconds between two checks during a wait
_NEVER_SENT = 0x7FFFFFF1  # a tag that no message has
_WORDS = 192  # bytes for a rank's readable description of its next call
_DIGEST = 16  # bytes for the digest of the collective, its number, operation, dtype and sizes


def _bytes(memory: tuple[int, int]) -> torch.Tensor:
    address, size = memory
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


class Ledger:
    """The position of each waiting rank of a group, in a store of all its ranks."""

    def __init__(self, store: dist.Store, name: str, rank: int, world_size: int):
        self._store, self._prefix = store, f"shoal/ledger/{name}"
        self.rank, self.world_size = rank, world_size

    def _get(self, key: str) -> dict | None:
        key = f"{self._prefix}/{key}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def post(self, **line) -> None:
        self._store.set(f"{self._prefix}/{self.rank}", json.dumps(line))

    def lines(self) -> list[dict]:
        return [self._get(str(r)) or {} for r in range(self.world_size)]

    def fail(self, error: dict) -> None:
        """Records the group's failure; only the first one is kept."""
        self._store.compare_set(f"{self._prefix}/failed", "", json.dumps(error))

    def failure(self) -> dict | None:
        return self._get("failed")


def _where(rank: int, line: dict) -> str:
    if line.get("waits"):
        return f"rank {rank} waits in {line['waits']}"
    return f"rank {rank} has left" if line.get("left") else f"rank {rank} does not wait in this group"


class _Message:
    """A message in flight, with its description and its memory. gloo aborts a message whose wait times out and has no completion test.
    A separate thread therefore waits."""

    def __init__(self, work: dist.Work, what: str, data: torch.Tensor, timeout: float):
        self.what, self.timeout, self._work, self._data = what, timeout, work, data
        self._error: RuntimeError | None = None
        self._completed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._error = error
        self._completed.set()

    def is_completed(self) -> bool:
        return self._completed.is_set()

    def wait(self, timeout: timedelta) -> None:
        if not self._completed.wait(timeout.total_seconds()):
            raise RuntimeError("not yet")
        if self._error is not None:
            raise self._error


class ProcessGroupBackend:
    """The object through which a native Communicator moves bytes. Memory is (address, bytes); counts are bytes. A call is (label, step,
    timeout, what: the collective, its operation and dtype)."""

    def __init__(self, store: dist.Store, rank: int, world_size: int, name: str, timeout: float, warn_after: float):
        # A group of its own, so that the user's concurrent operations on other groups do not interfere.
        own = dist.PrefixStore(f"shoal/gloo/{name}", store)
        self._group = dist.ProcessGroupGloo(own, rank, world_size, timeout=timedelta(days=365))
        self.rank, self.world_size = rank, world_size
        self._ledger = Ledger(store, name, rank, world_size)
        self._timeout, self._warn_after = timeout, warn_after
        self._sequence = 0
        self._broken = False

    # ---- collectives and messages ----

    def all_gather(self, source: tuple, target: tuple, counts: list[int], call: tuple) -> None:
        source, target, most = _bytes(source), _bytes(target), max(counts)
        if self.world_size == 1:
            target.copy_(source)
            return
        what, timeout = self._agree("all_gather", counts, call), call[2]
        if most == 0:
            return
        even = min(counts) == most
        if not even:
            source = torch.cat([source, source.new_empty(most - len(source))])
        whole = target if even else target.new_empty(most * self.world_size)
        self._await(self._group._allgather_base(whole, source, AllgatherOptions()), what, timeout)
        if not even:
            for part, piece, n in zip(target.split(counts), whole.split(most), counts, strict=True):
                part.copy_(piece[:n])

    def all_to_all(self, source: tuple, target: tuple, sends: list[int], receives: list[int], call: tuple) -> None:
        source, target = _bytes(source), _bytes(target)
        if self.world_size == 1:
            target.copy_(source)
            return
        what = self._agree("all_to_all", None, call, sends, receives)
        self._await(self._group.alltoall_base(target, source, receives, sends, AllToAllOptions()), what, call[2])

    def broadcast(self, data: tuple, root: int, call: tuple) -> None:
        if self.world_size == 1:
            return
        what = self._agree(f"broadcast from rank {root}", [data[1]], call)
        if data[1] > 0:
            options = BroadcastOptions()
            options.rootRank = root
            self._await(self._group.broadcast([_bytes(data)], options), what, call[2])

    def barrier(self, call: tuple) -> None:
        if self.world_size > 1:
            self._agree("barrier", None, call)

    def _agree(self, kind: str, counts: list[int] | None, call: tuple, sends: Sequence[int] = (), receives: Sequence[int] = ()) -> str:
        """Exchanges descriptions of the next operation and raises if they differ. Returns this rank's description."""
        self._sequence += 1
        size = "" if counts is None else f" ({sum(counts)} bytes)"
        what = f"{call[3] or kind} {self._sequence}{size}" + self._named(call)
        same = hashlib.blake2b(repr((kind, self._sequence, counts, call[3])).encode(), digest_size=_DIGEST).digest()
        mine = torch.zeros(_DIGEST + _WORDS + 8 * self.world_size, dtype=torch.uint8)
        words = same + what.encode()[:_WORDS]
        mine[: len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        if sends:
            mine[_DIGEST + _WORDS :].view(torch.int64).copy_(torch.tensor(sends))
        theirs = torch.empty(self.world_size, len(mine), dtype=torch.uint8)
        self._await(self._group._allgather_base(theirs.view(-1), mine, AllgatherOptions()), what, call[2])
        for rank, line in enumerate(theirs):
            said = bytes(line[_DIGEST : _DIGEST + _WORDS].numpy()).rstrip(b"\0").decode(errors="replace")
            if bytes(line[:_DIGEST].numpy()) != same:
                raise InvalidArgument(
                    f"the ranks' collectives differ: rank {self.rank} is in {what}, rank {rank} in {said}",
                    reason="Diverged",
                    hint="every rank must make the same calls, with the same sizes and dtypes, in the same order",
                )
            if receives and (sent := int(line[_DIGEST + _WORDS :].view(torch.int64)[self.rank])) != receives[rank]:
                raise InvalidArgument(
                    f"in {what}, rank {rank} sends {sent} bytes to rank {self.rank}, which expects {receives[rank]}",
                    reason="Diverged",
                    hint="the sizes that a rank sends and that the other rank expects must be equal",
                )
        return what

    def send(self, data: tuple, to: int, tag: int, call: tuple) -> _Message:
        data = _bytes(data)
        what = f"send to rank {to} (tag {tag}, {len(data)} bytes)" + self._named(call)
        return _Message(self._group.send([data], to, tag), what, data, call[2])

    def receive(self, data: tuple, source: int, tag: int, call: tuple) -> _Message:
        data = _bytes(data)
        what = f"recv from rank {source} (tag {tag}, {len(data)} bytes)" + self._named(call)
        return _Message(self._group.recv([data], source, tag), what, data, call[2])

    def wait(self, message: _Message) -> None:
        self._await(message, message.what, message.timeout)

    def abort(self, code: str, reason: str, text: str, hint: str) -> None:
        self._ledger.fail({"code": code, "reason": reason, "message": text, "hint": hint})
        self._break()

    def _break(self) -> None:
        """Closes this rank's connections, so that no operation hangs on any rank: gloo closes them when a receive times out."""
        if self._broken:
            return
        self._broken = True
        for rank in range(self.world_size):
            if rank != self.rank:
                with contextlib.suppress(RuntimeError):
                    self._group.recv([torch.empty(1)], rank, _NEVER_SENT).wait(timedelta(milliseconds=1))

    def leave(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store's process may have ended
            self._ledger.post(left=True)

    # ---- waiting ----

    def _named(self, call: tuple) -> str:
        return (f" '{call[0]}'" if call[0] else "") + f", step {call[1]}"

    def _await(self, work: dist.Work | _Message, what: str, timeout: float) -> None:
        began, num_checks, before = time.monotonic(), 0, None
        warn_at = self._warn_after
        try:
            while True:
                try:
                    work.wait(timedelta(seconds=CHECK_S))
                    return
                except RuntimeError:
                    if work.is_completed():  # failed, or finished since the timeout
                        self._ended(work, what)
                        return
                num_checks += 1
                waited = time.monotonic() - began
                self._ledger.post(waits=what, looks=num_checks)
                before = self._check(what, before)
                others = "; ".join(_where(r, line) for r, line in enumerate(before) if r != self.rank)
                if waited > (timeout or self._timeout):
                    raise DeadlineExceeded(
                        f"rank {self.rank} waited {waited:.0f} s in {what}: {others}",
                        reason="Late",
                        hint="a rank made fewer calls, or is stuck outside the group",
                    )
                if waited >= warn_at:
                    warn_at = waited + 6 * self._warn_after
                    say(f"shoal: warning: rank {self.rank} waits in {what} since {waited:.0f} s: {others}")
        except ShoalError as error:  # so that the others get the cause, not only a lost rank
            self.abort(error.code, error.reason, error.message, error.hint)
            raise
        # After a signal gloo still uses the memory, and the other ranks would take what is left of this call for the next one.
        except BaseException as error:
            self.abort("Cancelled", "Interrupted", f"rank {self.rank} was interrupted in {what}: {type(error).__name__}", "")
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(seconds=10))
            raise
        finally:
            if num_checks:
                self._ledger.post()

    def _ended(self, work: dist.Work | _Message, what: str) -> None:
        try:
            work.wait(timedelta(seconds=CHECK_S))
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _check(self, what: str, before: list[dict] | None) -> list[dict]:
        """Raises a failure that the ledger shows; returns the positions of all ranks."""
        lines = self._ledger.lines()
        # Read after the ranks' positions, because a rank stores the failure before it removes its position.
        if (failure := self._ledger.failure()) is not None:
            raise _error(failure)
        left = [r for r, line in enumerate(lines) if line.get("left")]
        if left:
            raise Unavailable(
                f"rank {left[0]} has left, rank {self.rank} waits in {what}",
                reason="ActorDied",
                hint=f"look at the output of rank {left[0]}; every rank must make the same calls",
            )
        stands = before is not None and all(
            line.get("waits") and line["waits"] == old.get("waits") and line["looks"] > old["looks"]
            for line, old in zip(lines, before, strict=True)
        )
        calls = {line.get("waits", "").split(" '")[0].split(", step")[0] for line in lines}
        if stands and len(calls) > 1:
            raise InvalidArgument(
                "the ranks wait in different calls: " + "; ".join(_where(r, line) for r, line in enumerate(lines)),
                reason="Diverged",
                hint="every rank must make the same calls, with the same sizes, in the same order",
            )
        return lines if not stands else before

    def _lost(self, what: str, error: RuntimeError) -> ShoalError:
        if (failure := self._ledger.failure()) is not None:
            return _error(failure)
        where = "; ".join(_where(r, line) for r, line in enumerate(self._ledger.lines()) if r != self.rank)
        return Unavailable(
            f"rank {self.rank} lost a rank of its group in {what} ({where}): {error}",
            reason="ActorDied",
            hint="look at the last output of the other ranks",
        )


_CODES = ["Cancelled", "Unavailable", "DeadlineExceeded", "ResourceExhausted", "InvalidArgument", "NotFound", "DataLoss", "Unimplemented"]


def _error(failure: dict) -> ShoalError:
    code = _CODES.index(failure["code"]) if failure["code"] in _CODES else len(_CODES)
    return from_error(code, failure["reason"], failure["message"], failure["hint"], [])
