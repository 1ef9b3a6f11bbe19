"""Leftovers of a test: processes, sockets, ports and shared memory that outlive it.

This process becomes the subreaper of its descendants, so that an orphan becomes its child instead of init's. A mark in the
environment finds the processes that escape even that. Orphans are not reaped before the check. As in a container without an init,
they stay zombies, which the code under test must treat as dead.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import time
import uuid
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_MARK = "SHOAL_TEST_MARK"
_GUARD_S = 60  # hang guard for a loaded machine


def wait_until(condition, within: float, what: str = "the condition"):
    """Polls ``condition()`` and returns its first true value; AssertionError if there is none. ``within``: the longest time it takes on
    an idle machine."""
    end = time.monotonic() + max(within, _GUARD_S)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not hold within {within:g} s"
        time.sleep(0.01)


def stat_of(pid: int) -> tuple[str, int] | None:
    """The state and the parent's pid of a process, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split(maxsplit=2)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[1])


def alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def gone(pids, within=5.0):
    wait_until(lambda: not any(alive(p) for p in pids), within, f"the end of {pids}")


def stop_cluster_of(driver) -> None:
    """Freezes the cluster that is embedded in a driver, head and node at once, so that it stops answering."""
    (pid,) = (p for p in descendants(driver.pid) if stat_of(p)[1] == driver.pid)
    os.kill(pid, signal.SIGSTOP)


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := stat_of(int(entry))):
            parents[int(entry)] = stat[1]
    found, more = set(), {pid}
    while more:
        more = {p for p, parent in parents.items() if parent in more} - found
        found |= more
    return found


def _in_file(path: str, text: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return text.encode() in file.read()
    except OSError:
        return False


class Leftovers:
    """Finds the leftovers of one test. ``home`` is its SHOAL_HOME."""

    def __init__(self, home: Path):
        assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()  # leaves the objects of imports out of the garbage collections after every test
        self._home = home
        self._mark = uuid.uuid4().hex
        self._before = descendants(os.getpid())
        os.environ[_MARK] = self._mark

    def processes(self) -> set[int]:
        found = descendants(os.getpid()) - self._before
        mark = f"{_MARK}={self._mark}"
        found |= {int(p) for p in os.listdir("/proc") if p.isdigit() and _in_file(f"/proc/{p}/environ", mark)}
        return {p for p in found - {os.getpid()} if alive(p)}

    def _sockets(self) -> list[str]:
        sessions = [p.name for p in self._home.iterdir() if p.is_dir()]
        lines = Path("/proc/net/unix").read_text().splitlines()
        return [line.split()[-1] for line in lines if any(s in line for s in sessions)]

    def _ports(self) -> list[int]:
        ports = set()
        for info in self._home.glob("*/info.json"):
            head = json.loads(info.read_text())["head"]
            if head:
                ports.add(int(head.rpartition(":")[2]))
        listening = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                listening.add(int(fields[1].partition(":")[2], 16))
        return sorted(ports & listening)

    def _memory(self) -> list[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in maps if "memfd:shoal:" in line]

    def _all(self) -> dict[str, list]:
        processes = [f"{p} ({stat_of(p)}): {command_of(p)}" for p in sorted(self.processes())]
        return {k: v for k, v in {"processes": processes, "sockets": self._sockets(), "ports": self._ports()}.items() if v}

    def _anything(self) -> bool:
        return bool(self.processes() or self._sockets() or self._ports())

    def assert_nothing(self, within: float = _GUARD_S) -> None:
        end = time.monotonic() + within
        while True:
            began = time.process_time()
            if not (found := self._anything()) or time.monotonic() > end:
                break
            # sleeps longer than the look took, so that the processes that are to end get the CPU
            time.sleep(max(0.01, 5 * (time.process_time() - began)))
        found = self._all() if found else {}
        for pid in self.processes() if found else ():
            os.kill(pid, 9)
        for pid in descendants(os.getpid()) - self._before:
            stat = stat_of(pid)
            if stat == ("Z", os.getpid()):
                os.waitpid(pid, os.WNOHANG)
        gc.collect()
        memory = self._memory()
        assert not found, f"left behind: {found}"
        assert not memory, f"shared memory is still mapped: {memory}"
