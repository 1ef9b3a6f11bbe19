"""``python -m shoal.train._chaos ADDRESS JOB SEED RATE DURATION FAULTS [--yes] [--json]``, the Python part of ``shoal chaos``."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from shoal._core.command import run_command
from shoal._objects.values import get
from shoal._printable import say
from shoal.exceptions import InvalidArgument, ShoalError
from shoal.train._chaos.harm import kill_process, on_node, stop_process
from shoal.train._chaos.head import check_head, kill_head
from shoal.train._chaos.plan import Fault, kinds_of, per_second_of, possible, seconds_of, sequence, victim
from shoal.train._chaos.status import Status, Worker
from shoal.train._scale_command import driver_of, open_session, print_error

_POLL_S = 0.1  # between two requests for a training's status
_LONGEST_S = 180.0  # a training that does not go on for so long after a fault has not survived it
_NO_REPORT_S = 20.0  # a training without a report for so long after a stop counts as one that goes on, if its workers are the same
_NO_VICTIM_S = 60.0  # a fault that finds no victim for so long is skipped
_ANSWER_S = 30.0  # the driver's time to answer


@dataclass(frozen=True)
class Outcome:
    """``at_s``: the time at which the fault came. ``worker``: its number; `None` for the head. ``pause_s``: the training's pause; None if
    too few reports show it. ``skipped``: no worker could be hit."""

    fault: Fault
    at_s: float
    worker: int | None
    survived: bool
    generation: int = 0
    pause_s: float | None = 0.0
    steps_lost: int = 0
    skipped: bool = False

    def __str__(self) -> str:
        start = f"{self.at_s:8.1f} s  {self.fault.kind}" + (f" worker {self.worker}" if self.worker is not None else "")
        if self.skipped:
            return f"{start}: skipped, because no worker has another one that could take over its part"
        if not self.survived:
            return f"{start}: the training did not go on, or has ended"
        pause = "pause unknown, because the training reports seldom" if self.pause_s is None else f"pause {self.pause_s:.3f} s"
        return f"{start}: generation {self.generation}, {pause}, {self.steps_lost} steps lost"


class Ended(Exception):
    """The training has ended."""


class Chaos:
    """Inflicts faults on one training. ``say``: prints a line."""

    def __init__(self, session: Any, job: str, say: Any):
        self._session, self._job, self._say = session, job, say
        self._driver = driver_of(session, job)
        self._began, self._pause = time.monotonic(), threading.Event()

    def check(self, faults: list[Fault], yes: bool) -> None:
        """Raises InvalidArgument for a training, or a cluster, in which these faults may destroy work."""
        if any(f.kind == "head" for f in faults):
            check_head()
        if yes:
            return
        status = self.status()
        if not status.protected:
            change = (
                "leave out protect=False" if status.elastic else "pass ScalingConfig(num_workers=(minimum, maximum)), and use steps or run"
            )
            raise InvalidArgument(
                f"job {self._job} does not survive the death of a worker", hint=f"{change}; --yes inflicts faults all the same"
            )
        others = [r["name"] for r in self._session.list("jobs") if r["state"] in ("RUNNING", "PENDING") and r["id"] != self._job]
        if others:
            raise InvalidArgument(f"the cluster has other jobs: {', '.join(others)}", hint="--yes inflicts faults all the same")

    def status(self) -> Status:
        try:
            return get(self._driver.status.remote(), timeout=_ANSWER_S)
        except ShoalError as error:
            raise Ended(str(error)) from None

    def inflict(self, fault: Fault) -> Outcome:
        """Waits for the fault's time, and until all workers train. Inflicts the fault, and waits until they train again."""
        self._pause.wait(max(0.0, self._began + fault.at_s - time.monotonic()))
        before = self._wait(lambda s: possible(s, fault), _NO_VICTIM_S)
        at = time.monotonic() - self._began
        if before is None:
            return Outcome(fault, at, None, True, skipped=True)
        worker = victim(before, fault) if fault.kind != "head" else None
        try:
            if fault.kind == "kill":
                with contextlib.suppress(ShoalError):  # the end of the training also ends the function's worker
                    self._hit(worker, on_node(kill_process, worker.node).remote(worker.process))
                return self._after_kill(fault, at, worker)
            return self._after_trouble(fault, at, worker, before)
        except Ended:
            return Outcome(fault, at, worker and worker.number, False)

    @staticmethod
    def _hit(worker: Worker, answer: Any, seconds: float = 0.0) -> None:
        if not get(answer, timeout=seconds + _ANSWER_S):
            raise Ended(f"worker {worker.number} has ended")

    def _after_kill(self, fault: Fault, at: float, worker: Worker) -> Outcome:
        now = self._wait(lambda s: s.steady and worker.number in s.died)
        if now is None:
            return Outcome(fault, at, worker.number, False)
        return Outcome(fault, at, worker.number, True, now.generation, now.pause_s, now.undone)

    def _after_trouble(self, fault: Fault, at: float, worker: Worker | None, before: Status) -> Outcome:
        """The fault ends no worker: the training survives it if reports follow. Their times show its pause: the command's own time to
        inflict the fault, and to see its end, does not count."""
        number = worker and worker.number
        if worker is None:
            kill_head()
        else:
            self._hit(worker, on_node(stop_process, worker.node).remote(worker.process, fault.hold_s), fault.hold_s)
        reports = self.status().reports
        now = self._wait(lambda s: s.steady and s.reports > reports, _NO_REPORT_S) or self._wait(lambda s: s.steady)
        if now is None:
            return Outcome(fault, at, number, False)
        undone = now.undone if now.generation > before.generation else 0
        return Outcome(fault, at, number, True, now.generation, now.pace.pause_since(before.pace), undone)

    def _wait(self, condition: Any, longest_s: float = _LONGEST_S) -> Status | None:
        end = time.monotonic() + longest_s
        while not condition(status := self.status()):
            if time.monotonic() > end:
                return None
            self._pause.wait(_POLL_S)
        return status


@dataclass(frozen=True)
class Total:
    """``planned``: the faults of the seed; fewer are injected if the training ends before, or if some find no victim."""

    planned: int
    injected: int
    survived: int
    steps_lost: int

    @staticmethod
    def count(faults: list[Fault], outcomes: list[Outcome]) -> Total:
        injected = [o for o in outcomes if not o.skipped]
        return Total(len(faults), len(injected), sum(o.survived for o in injected), sum(o.steps_lost for o in injected))

    def __str__(self) -> str:
        planned = "" if self.injected == self.planned else f" of {self.planned} planned faults"
        return f"injected {self.injected}{planned}, survived {self.survived}, steps lost {self.steps_lost}"

    @property
    def passed(self) -> bool:
        return 0 < self.injected == self.survived and not self.steps_lost


def run(chaos: Chaos, faults: list[Fault], say: Any) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for fault in faults:
        try:
            outcomes.append(chaos.inflict(fault))
        except Ended:
            say("the training has ended")
            break
        say(str(outcomes[-1]))
        if not outcomes[-1].survived:
            break
    return outcomes


def main() -> int:
    address, job, seed, rate, duration, kinds, *options = sys.argv[1:]
    as_json = "--json" in options

    def show(text: str) -> None:
        say(text, sys.stderr if as_json else sys.stdout)

    try:
        faults = sequence(int(seed), per_second_of(rate), seconds_of(duration), kinds_of(kinds))
    except InvalidArgument as error:
        print_error(error)
        return 2
    outcomes: list[Outcome] = []
    try:
        with open_session(address, job, "shoal chaos") as session:
            chaos = Chaos(session, job, show)
            chaos.check(faults, "--yes" in options)
            if not faults:
                raise InvalidArgument(f"seed {seed} has no fault within {duration} at {rate}", hint="raise --for or --rate")
            show("\n".join([f"seed {seed}: {len(faults)} faults for job {job}", *map(str, faults)]))
            outcomes = run(chaos, faults, show)
    except Ended as error:
        print_error(InvalidArgument(f"job {job} has ended: {error}"))
        return 1
    except BrokenPipeError:  # nothing reads what this prints
        raise
    except (ShoalError, OSError) as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        show("interrupted")
    total = Total.count(faults, outcomes)
    if as_json:
        found = [asdict(o) for o in outcomes]
        print(json.dumps({"schema": "shoal.chaos/1", "job_id": job, "seed": int(seed), "faults": found, **asdict(total)}))
    else:
        print(total)
    return 0 if total.passed else 1


if __name__ == "__main__":
    run_command(main)
