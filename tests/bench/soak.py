"""Churn on a small cluster whose memory, descriptors, threads, processes and disk must stay bounded (30 minutes; not part of CI)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from figures import family, tag_children
from launch import HERE, Failed, say
from launching.commands import Command
from report import Report, Row

NEEDS_PEERS = False
SETTLE_S = 60  # time in which spare workers and kept memory may go, after the driver has dropped everything
WAIT_S = 120  # hang guard of a step of the driver


@dataclass(frozen=True)
class Measure:
    """A quantity that is measured. ``noise``: how far samples of a steady process differ. ``per_hour``: bound of the growth beyond
    noise. ``left``: by how much the end may exceed the warm cluster. It allows for fragments, and for records that are kept on purpose
    (1,000 rows of ended objects, 400 logs)."""

    name: str
    unit: str
    noise: float
    per_hour: float
    left: float


_ROLES = ["head", "node", "driver"]
MEASURES = [
    *(Measure(f"{role}: memory", "MiB", 6, 12, 32) for role in _ROLES),
    *(Measure(f"{role}: descriptors", "", 40, 10, 8) for role in _ROLES),
    *(Measure(f"{role}: threads", "", 4, 1, 2) for role in _ROLES),
    Measure("all processes", "", 12, 6, 4),
    Measure("all memory", "MiB", 250, 100, 64),
    Measure("shared memory", "MiB", 60, 20, 16),
    Measure("session: files", "", 100, 20, 1000),
    Measure("session: bytes", "MiB", 4, 12, 32),
    Measure("/dev/shm: files", "", 2, 1, 0),
]


def add_options(parser):
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the order of what is done")
    parser.add_argument("--cpus", type=int, default=4, help="of the cluster")
    parser.add_argument("--kill-head-every", type=float, default=60, metavar="SECONDS", help="0: never")
    parser.add_argument("--only", default="", help="activities (functions of soak_churn.py), with commas between them")


def measure(options) -> Report:
    report = SoakReport("soak", [])
    with tempfile.TemporaryDirectory(prefix="shoal-soak.") as home:
        os.chmod(home, 0o700)
        cluster = Watched(home, options.cpus)
        try:
            _soak(report, cluster, options)
        except Failed as error:
            report.failures["soak"] = str(error)
        finally:
            cluster.end()
    return report


def _soak(report, cluster, options) -> None:
    seconds = options.minutes * 60
    driver = Driver(cluster, ["--seconds", seconds, "--seed", options.seed, "--only", options.only])
    try:
        driver.wait_for("warm")
        first = _settled(lambda: cluster.sample(driver.pid), lambda now, before: now == before)
        driver.go_on()
        samples, begin, killed = [], time.monotonic(), 0
        while not driver.said("churned"):
            passed = time.monotonic() - begin
            samples.append((passed, cluster.sample(driver.pid)))
            if options.kill_head_every and passed > (killed + 1) * min(options.kill_head_every, seconds / 2):
                cluster.started.kill_head()
                killed += 1
            if len(samples) % 60 == 0:
                say(f"bench soak: {passed / 60:.0f} minutes, {samples[-1][1]['all memory']:.0f} MiB")
            driver.look(min(5.0, max(0.1, seconds / 120)))
        last = _settled(lambda: cluster.sample(driver.pid), lambda now, _: all(now[m.name] <= first[m.name] + m.left for m in MEASURES))
        report.fill(first, samples, last)
        report.raw += [driver.said("churned"), {"heads killed": killed}]
        driver.leave()
    finally:
        driver.end()


def _settled(sample, good) -> dict[str, float]:
    """Samples until `good` accepts a sample, given that and the one before; for at most SETTLE_S. Returns the last sample."""
    end, before = time.monotonic() + SETTLE_S, sample()
    while time.monotonic() < end:
        time.sleep(0.5)
        now = sample()
        if good({k: round(v) for k, v in now.items()}, {k: round(v) for k, v in before.items()}):
            return now
        before = now
    return before


def growth_per_hour(samples: list[tuple[float, float]], noise: float) -> float:
    """The slope of the least-squares line through (second, value), minus the part that noise may explain within the observed time."""
    span = samples[-1][0] - samples[0][0] if samples else 0.0
    if len(samples) < 3 or span <= 0:
        return 0.0
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_v = sum(v for _, v in samples) / len(samples)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in samples) / sum((t - mean_t) ** 2 for t, _ in samples)
    return max(0.0, slope * span - noise) / span * 3600


_BELOW = {"ratio": "ours - bound", "goal": ("<=", 0)}


class SoakReport(Report):
    """A report with two rows for each measure, beside their bounds: the growth, and the excess after everything was dropped."""

    def value(self, row: Row) -> float | None:
        ours, bound = self.samples.get(row.ours), self.samples.get(row.peer)
        return ours[0] - bound[0] if ours and bound else None

    def fill(self, first: dict, samples: list[tuple[float, dict]], last: dict) -> None:
        later = [s for s in samples if s[0] >= samples[-1][0] / 2]
        for m in MEASURES:
            grows = growth_per_hour([(t, s[m.name]) for t, s in later], m.noise)
            self.rows.append(Row(f"{m.name}, growth", f"{m.unit}/h", f"{m.name} growth", f"{m.name} growth bound", **_BELOW))
            self.rows.append(Row(f"{m.name}, left", m.unit, f"{m.name} left", f"{m.name} left bound", **_BELOW))
            self.add(f"{m.name} growth", grows)
            self.add(f"{m.name} growth bound", m.per_hour)
            self.add(f"{m.name} left", last[m.name])
            self.add(f"{m.name} left bound", first[m.name] + m.left)
            self.add(m.name, [first[m.name], *(s[m.name] for _, s in samples)])
        self.add("second", [0.0, *(t for t, _ in samples)])

    def table(self) -> str:
        lines = [("", "warm", "halfway", "churned", "dropped", "(bound)", "growth per hour", "(bound)", "")]
        for grows, left in zip(self.rows[::2], self.rows[1::2], strict=True):
            name = left.ours.removesuffix(" left")
            values = self.samples[name]
            holds = self.holds(grows) and self.holds(left)
            numbers = [values[0], values[len(values) // 2], values[-1], *(self.samples[s][0] for s in (left.ours, left.peer))]
            numbers += [self.samples[s][0] for s in (grows.ours, grows.peer)]
            lines.append((f"{name} {left.unit}".strip(), *(f"{n:.1f}".removesuffix(".0") for n in numbers), "holds" if holds else "MISS"))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]) for line in lines]
        return "\n".join([*text, *map(json.dumps, self.raw), *(f"{series}: {why}" for series, why in self.failures.items())])


class Watched:
    """A cluster, as `shoal start` starts it, whose processes are measured."""

    def __init__(self, home: str, cpus: int):
        self._tag = tag_children()
        base = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_") or k == "SHOAL_BENCH_ID"}
        base |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._command = Command(Path(home), base=base)
        self.env = self._command.env()
        self.started = self._command.start(cpus=cpus)

    def sample(self, driver: int) -> dict[str, float]:
        every = family(self._tag)
        out: dict[str, float] = {"all processes": len(every), "all memory": sum(map(_pss, every)), "shared memory": _shared(every)}
        for role, pids in (("head", self.started.pids("head")), ("node", self.started.pids("node")), ("driver", [driver])):
            out[f"{role}: memory"] = sum(map(_pss, pids))
            out[f"{role}: descriptors"] = sum(_count(pid, "fd") for pid in pids)
            out[f"{role}: threads"] = sum(_count(pid, "task") for pid in pids)
        files = _files(self.started.session)
        out["session: files"], out["session: bytes"] = len(files), sum(files.values()) / 2**20
        # counts the files of other clusters, too
        out["/dev/shm: files"] = len([name for name in _files(Path("/dev/shm")) if "shoal" in name])
        return out

    def end(self) -> None:
        """Stops the cluster in order, then kills any process left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._command("stop")
        for pid in family(self._tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _pss(pid: int) -> float:
    """PSS of a process, in MiB."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) / 1024
    return 0.0


def _count(pid: int, what: str) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{what}"))
    return 0


def _shared(pids: list[int]) -> float:
    """MiB of memory files that these processes have open, each counted once."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(fd.path).startswith("/memfd:"):
                        known = os.stat(fd.path)
                        found[known.st_ino] = known.st_blocks * 512
    return sum(found.values()) / 2**20


def _files(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files beneath the folder, by name."""
    out = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                out[os.path.join(parent, name)] = os.lstat(os.path.join(parent, name)).st_size
    return out


class Driver:
    """The process of soak_churn.py, and its output lines."""

    def __init__(self, cluster: Watched, words: list):
        self._lines: deque[dict] = deque()
        self._errors = Path(cluster.env["SHOAL_HOME"], "driver.err")
        argv = [sys.executable, str(HERE / "soak_churn.py"), *map(str, words)]
        with self._errors.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            self._process = subprocess.Popen(argv, env=cluster.env, text=True, **pipes)
        self.pid = self._process.pid
        self._heard = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.append(json.loads(line))
            self._heard.set()
        self._heard.set()

    def said(self, at: str) -> dict | None:
        return next((line for line in self._lines if line["at"] == at), None)

    def wait_for(self, at: str) -> None:
        end = time.monotonic() + WAIT_S
        while not self.said(at):
            self.look(0.5)
            if time.monotonic() > end:
                raise Failed(f"the driver is not {at} after {WAIT_S} s")

    def look(self, seconds: float) -> None:
        """Waits until the driver prints a line, for at most `seconds`. Raises Failed if the driver has ended."""
        self._heard.wait(seconds)
        self._heard.clear()
        if self._process.poll() is not None:
            raise Failed(f"the driver ended with {self._process.returncode}: {self._errors.read_text()[-2000:].strip()}")

    def go_on(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        self._process.stdin.close()
        if self._process.wait(WAIT_S):
            raise Failed(f"the driver left with {self._process.returncode}")

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
