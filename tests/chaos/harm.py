"""The effects of each fault on the processes, the disk and the link of a training."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter

from faults import Fault
from launching.leftovers import alive, wait_until
from places import Place

_GIVEN_UP_S = 30  # the cluster gives a silent host up within 5 s
_OOM_S = 5  # a worker that makes no step for so long is killed before its memory has grown


class Harm:
    """Inflicts faults, and counts them in ``kinds``. ``killed``: the number of workers that the last fault has ended."""

    def __init__(self, place: Place, kinds: Counter[str]):
        self._place, self._kinds = place, kinds
        self._never = threading.Event()
        self._reports_left = 0  # until the disk is as it was
        self.killed = 0

    def inflict(self, fault: Fault, pids: list[int]) -> None:
        """``pids``: the workers' processes, by rank."""
        self._kinds[fault.kind] += 1
        self.killed = 0
        victim = fault.victim(len(pids))
        match fault.kind:
            case "stop":
                send(pids[victim], signal.SIGSTOP)
                self._never.wait(fault.hold_s)
                send(pids[victim], signal.SIGCONT)
            case "head":
                for pid in self._place.cluster.pids("head"):
                    send(pid, signal.SIGKILL)
            case "host":
                there = [pid for pid in pids if network_of(pid) == network_of(pids[victim])]
                self._kill(there if len(there) < len(pids) else there[:1])
            case "oom":
                self._exhaust(pids[victim])
            case "full":
                self._reports_left = fault.reports
                self._place.disk.fill()
            case "slow":
                self._reports_left = fault.reports
                self._place.disk.slow.touch()
            case "link":
                self._cut(fault.hold_s)
            case "cut":
                self._lose_host(pids)
            case _:
                self._kill([pids[victim]])
                if fault.kind == "pair" and len(pids) > 2:
                    self._never.wait(fault.hold_s)
                    self._kill([pids[victim - 1]])

    def reported(self, reports: int) -> None:
        """Ends what lasts for a number of reports."""
        if self._reports_left > 0:
            self._reports_left -= reports
            if self._reports_left <= 0:
                self._place.disk.heal()

    def _kill(self, pids: list[int]) -> None:
        self.killed += sum(send(pid, signal.SIGKILL) for pid in pids)

    def _exhaust(self, pid: int) -> None:
        chosen = self._place.disk.folder / f"oom-{pid}"
        chosen.touch()
        for _ in range(100 * _OOM_S):
            if not alive(pid):
                self.killed += 1
                break
            self._never.wait(0.01)
        else:
            self._kill([pid])
        chosen.unlink(missing_ok=True)

    def _cut(self, hold_s: float) -> None:
        hosts = self._place.hosts
        hosts.cut(hosts.b)
        try:
            self._never.wait(hold_s)
        finally:
            hosts.heal(hosts.b)

    def _lose_host(self, pids: list[int]) -> None:
        """Cuts the second host off until the cluster has given it up. Its node ends its workers then, and it joins again."""
        hosts, first = self._place.hosts, network_of(self._place.cluster.pids("head")[0])
        there = [pid for pid in pids if network_of(pid) != first]
        if len(there) == len(pids):  # no other host could go on
            return
        hosts.cut(hosts.b)
        try:
            wait_until(lambda: "b" not in self._nodes(), _GIVEN_UP_S, "the loss of the host")
        finally:
            hosts.heal(hosts.b)
        wait_until(lambda: not any(map(alive, there)), _GIVEN_UP_S, "the end of the lost host's workers")
        self.killed += len(there)
        self._place.rejoin()

    def _nodes(self) -> list[str]:
        """The hosts whose nodes the cluster has."""
        return [n["labels"]["host"] for n in self._place.hosts.a.rows("nodes") if n["state"] == "ALIVE"]


def send(pid: int, number: int) -> bool:
    """Returns True if a living process got the signal."""
    with contextlib.suppress(ProcessLookupError):
        if alive(pid):
            os.kill(pid, number)
            return True
    return False


def network_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    return 0
