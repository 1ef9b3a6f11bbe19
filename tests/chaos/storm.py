"""Trainings under faults, one after the other, until so many workers were killed: storm.py [--kills N] [--seed S] [--hosts]
[--devices].

Training number k of a run has the faults of seed S + k, on a cluster that all trainings of the run share. With --hosts it is a cluster over
two network namespaces. Otherwise a fifth of the kills comes there, if this machine can make them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import selectors
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).absolute().parent
sys.path.insert(0, str(FOLDER.parent))

from faults import faults  # noqa: E402
from harm import Harm  # noqa: E402
from launching.hosts import Hosts  # noqa: E402
from launching.leftovers import alive  # noqa: E402
from places import Place, disk, one_host, two_hosts  # noqa: E402

EPOCHS = 200  # 1,000 steps
LAST_STEPS = 100  # steps at a training's end without a fault: a death behind the last step ends a training, as docs/training.md says
SILENCE_S = 90  # a training that reports no step for so long stands still
# The ends of trainings that docs/training.md lists under "Limits".
DOCUMENTED = (
    "no other worker of the training runs on its node",  # all workers were on one node, and the last of them has died
    "neither has that of its buddy",
    "no worker is left",
)


@dataclass
class Counts:
    """``survived``: kills after which the training went on. ``limits``: kills that ended a training in a way that docs/training.md lists,
    with the reasons in ``reasons``. ``checked``: looks at a newest checkpoint. ``unsaved``: saves that were reported as failed.
    ``failures``: all else that is wrong, with the seeds."""

    trainings: int = 0
    steps: int = 0
    kills: int = 0
    survived: int = 0
    limits: int = 0
    checked: int = 0
    unsaved: int = 0
    lost: int = 0
    twice: int = 0
    orphans: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        pauses = sorted(self.pauses)
        lines = [
            f"trainings {self.trainings}, steps {self.steps}, kills {self.kills}, survived {self.survived}, "
            f"ended by a documented limit {self.limits}",
            f"faults: {', '.join(f'{kind} {number}' for kind, number in sorted(self.kinds.items()))}",
            f"checkpoints checked {self.checked}, saves that failed and were reported {self.unsaved}",
            f"steps lost {self.lost}, steps applied twice {self.twice}, orphans {self.orphans}, failures {len(self.failures)}",
        ]
        if pauses:
            lines.append(f"pauses: median {pauses[len(pauses) // 2]:.3f} s, longest {pauses[-1]:.3f} s")
        return "\n".join(lines + [f"documented limit: {r}" for r in self.reasons] + self.failures)


class Training:
    """One training under the faults of a seed."""

    def __init__(self, place: Place, seed: int, counts: Counts, case: dict):
        self._place, self._counts, self._case = place, counts, place.case | case
        self._faults = faults(seed, place.weights)
        self._fault = next(self._faults)
        self._reports = 0  # by two or more workers, since the last fault
        self._harm = Harm(place, counts.kinds)
        self.inflicted: list[str] = []
        self._never = threading.Event()

    def run(self, errors) -> str:
        """Returns what is wrong with the training, or ""."""
        argv = [sys.executable, str(FOLDER / "training.py"), self._place.cluster.address, json.dumps(self._case | {"epochs": EPOCHS})]
        process = self._place.program(argv, {"stdout": subprocess.PIPE, "stderr": errors})
        self._counts.trainings += 1
        end: dict = {}
        try:
            for lines in lines_of(process.stdout, SILENCE_S):
                if not lines:
                    return self._stands_still()
                reports = [line for line in lines if "step" in line]
                self._counts.steps += len(reports)
                end = end if reports == lines else lines[-1]
                if reports and not end:
                    self._on_reports(reports)
            return self._judge(end, process.wait())
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            self._place.disk.heal()

    def _on_reports(self, lines: list[dict]) -> None:
        """Inflicts the next fault if it is due: a victim is one of the workers of the newest report."""
        self._harm.reported(len(lines))
        self._reports += sum(len(line["pids"]) > 1 for line in lines)
        step, pids = lines[-1]["step"], lines[-1]["pids"]
        if self._reports < self._fault.after or len(pids) < 2 or step > EPOCHS * 5 - LAST_STEPS:
            return
        self._never.wait(self._fault.delay_s)
        if all(map(alive, pids)):  # else these reports are from before the last fault
            self.inflicted.append(f"step {step}, workers {pids}: {self._fault}")
            self._harm.inflict(self._fault, pids)
            self._counts.kills += self._harm.killed
            self._counts.survived += self._harm.killed  # until the training ends otherwise
            self._fault, self._reports = next(self._faults), 0

    def _not_survived(self) -> None:
        self._counts.survived -= self._harm.killed

    def _stands_still(self) -> str:
        self._not_survived()
        stacks = "\n".join(command("stack").stdout for command in self._place.commands)
        return f"it reported no step for {SILENCE_S} s:\n{stacks}"

    def _judge(self, end: dict, code: int) -> str:
        self._counts.checked += end.get("checked", 0)
        if wrong := end.get("wrong_saves"):
            return "; ".join(wrong)
        if (why := end.get("worker_lost")) is not None:
            self._not_survived()
            if any(text in why for text in DOCUMENTED):
                self._counts.limits += self._harm.killed
                self._counts.reasons.append(why[:160])
                return ""
            return f"it ended: {why}"
        if (result := end.get("result")) is None:
            self._not_survived()
            return f"it ended with code {code}"
        self._counts.lost += max(0, result["lost"])
        self._counts.twice += max(0, result["twice"])
        self._counts.pauses += result["pauses"]
        return "; ".join(result["wrong"])


def lines_of(stream, silence_s: float) -> Iterator[list[dict]]:
    """Yields the lines of JSON that a process has written since, and an empty list if it writes none for so long."""
    buffer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(silence_s):
                yield []
                return
            if not (more := os.read(stream.fileno(), 1 << 20)):
                return
            *whole, buffer = (buffer + more).split(b"\n")
            if whole:
                yield [json.loads(line) for line in whole]


def text_of(file) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def storm(
    place: Callable[[], contextlib.AbstractContextManager[Place]],
    kills: int,
    seed: int,
    say: Callable[[str], None],
    devices: bool = False,
) -> Counts:
    """Runs trainings until so many workers were killed. Returns the counts, also those of what was wrong. ``devices``: models lie on them,
    which are the CPU. There each second training has an optimizer whose steps the host copies, and the others one whose steps it
    repeats."""
    counts, option = Counts(), ("" if place is one_host else " --hosts") + (" --devices" if devices else "")
    try:
        with place() as at:
            while counts.kills < kills and len(counts.failures) < 3:
                number = seed + counts.trainings
                lies = "copied" if devices and number % 2 == 0 else devices
                with tempfile.TemporaryFile() as errors, disk() as of:
                    training = Training(at.with_disk(of), number, counts, {"devices": lies})
                    if wrong := training.run(errors):
                        said = [*text_of(errors).splitlines()[-60:], *training.inflicted[-4:]]
                        counts.failures.append(f"FAILED: {wrong[:20000]}\n  repeat with: ./dev chaos --kills 1 --seed {number}{option}")
                        say("\n".join([*said, counts.failures[-1]]))
                    counts.unsaved += text_of(errors).count("was not saved, and the training goes on")
                say(f"seed {number}: {counts.kills} kills, {counts.survived} survived, {counts.limits} at a documented limit")
    except AssertionError as error:  # the check has found leftovers
        counts.orphans += max(1, len(re.findall(r"\d+ \(\(", str(error))))
        counts.failures.append(f"FAILED: {error}\n  repeat with: ./dev chaos --kills {kills} --seed {seed}{option}")
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Elastic trainings under faults that a seed decides.")
    parser.add_argument("--kills", type=int, default=50, help="workers to kill (50)")
    parser.add_argument("--seed", type=int, help="the first training's seed (default: a new one)")
    parser.add_argument("--hosts", action="store_true", help="only the cluster over two network namespaces")
    parser.add_argument("--devices", action="store_true", help="models outside of arenas, as on devices, which here are the CPU")
    options = parser.parse_args()
    seed = random.randrange(1 << 20) if options.seed is None else options.seed
    why_not, total = Hosts.why_not(), Counts()
    on_hosts = options.kills if options.hosts else 0 if why_not else options.kills // 5
    if why_not:
        print(f"without hosts: {why_not}")
    for place, kills in ((one_host, options.kills - on_hosts), (two_hosts, on_hosts)):
        if kills:
            counts = storm(place, kills, seed, lambda text: print(text, flush=True), options.devices)
            print(f"-- {place.__name__.replace('_', ' ')}\n{counts}", flush=True)
            total.add(counts)
    print(f"-- seed {seed}, all\n{total}")
    return 1 if total.failures or total.lost or total.twice or total.orphans else 0


if __name__ == "__main__":
    sys.exit(main())
