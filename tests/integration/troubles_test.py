"""Verdicts on real trainings under ``shoal run``, each with a trouble by real means: processes sleep, stop and die, links are cut.

``./dev test`` runs two of them, ``./dev test --all`` each. The table of all delays, from the harm to the recorded verdict, is an output of
the test (``troubles.txt``).
"""

import contextlib
import json
import os
import signal
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from internals.core import binary
from launching.commands import LIMIT_S
from launching.hosts import two_hosts
from launching.leftovers import wait_until
from recorded import recorded
from running import run

WHOLE = "SHOAL_SEEDS" in os.environ
SCRIPT = Path(__file__).with_name("troubled.py")
PRELOAD = Path(os.environ.get("TROUBLES_PRELOAD", "tests/integration/libtroubles.so")).absolute()
STEP = 80  # the trouble's
GUARD_S = 60  # hang guard of a step
whole = pytest.mark.skipif(not WHOLE, reason="./dev test --all runs it")

table: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def delays():
    yield
    text = "\n".join([f"{'trouble':<22} {'by':<44} {'verdict':<22} {'rank':>4} {'step':>5} {'true':>5} {'delay':>8}", *table])
    print(f"\n{text}")
    if outputs := os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR"):
        Path(outputs, "troubles.txt").write_text(text + "\n")


def add_row(name: str, by: str, verdict: dict, step: int, delay_s: float) -> None:
    rank = verdict.get("rank", "-")
    table.append(f"{name:<22} {by:<44} {verdict['code']:<22} {rank:>4} {verdict['since_step']:>5} {step:>5} {delay_s:>6.2f} s")


@dataclass
class Live:
    """A rank's live page."""

    beat_us: int
    step: int  # steps that have ended
    rank: int

    @classmethod
    def all(cls, folder: Path) -> dict[int, "Live"]:
        out = {}
        for path in folder.glob("processes/*/live"):
            with contextlib.suppress(struct.error, OSError):
                magic, _, _, beat_us, _, step, rank = struct.unpack_from("<QqqqqQI", path.read_bytes())
                if magic and json.loads((path.parent / "process.json").read_text())["role"] == "rank":
                    out[rank] = cls(beat_us, step, rank)
        return out


@dataclass
class Case:
    code: str
    by: str  # the means of harm
    rank: int | None = 1
    troubles: list[dict] = field(default_factory=list)
    state: str = "slow"
    step_off: int = 1
    others: tuple[str, ...] = ()  # codes that may come, too
    shown: bool = True  # `shoal show` names it while the run lives


class Training:
    """A run of the script with its troubles. ``before``: a prefix of the command, ``hosts``: two, with a rank each."""

    def __init__(self, command, tmp_path: Path, troubles: list[dict], *, hosts=None, before=(), folder: Path | None = None, **env: str):
        self.command, self.folder, self.notes = command, folder or tmp_path / "run", tmp_path / "notes"
        self.notes.mkdir()
        env = {"TROUBLES": json.dumps(troubles), "NOTES": str(self.notes), "OMP_NUM_THREADS": "1", **env}
        words = ["--run-folder", self.folder]
        if hosts is None:
            argv = [*before, binary(), "run", *map(str, words), "--nproc", "2", str(SCRIPT)]
            self.jobs = [command.program(argv, **env)]
        else:
            words += ["--nproc", "1", "--hosts", f"{hosts.a.address},{hosts.b.address}", SCRIPT]
            self.jobs = [run(host, *words, **env) for host in reversed(hosts.all)][::-1]

    def has(self, condition, what: str):
        def found():
            value = condition()
            assert value or self.jobs[0].process.poll() is None, f"no {what}; the run has ended: {self.jobs[0].err}"
            return value

        return wait_until(found, GUARD_S, what)

    def noted(self, kind: str) -> tuple[int, int]:
        """Waits for the harm; returns its time of day in microseconds and its step."""
        path = self.notes / kind
        self.has(path.exists, f"harm {kind}")
        note = json.loads(path.read_text())
        return note["t"], note["step"]

    def reaches(self, step: int) -> None:
        self.has(lambda: any(page.step >= step for page in Live.all(self.folder).values()), f"step {step}")

    def verdicts(self) -> list[dict]:
        """Those that ``shoal run`` has recorded."""
        return [e for p in recorded(self.folder, "launcher") for kind in ("verdict", "note") for e in p.events(kind)]

    def verdict(self, code: str, state: str = "") -> dict:
        def found():
            return next((v for v in self.verdicts() if v["code"] == code and state in ("", v["state"])), None)

        try:
            return wait_until(lambda: found() or (self.jobs[0].process.poll() is not None and (found() or {"ended": True})), GUARD_S)
        except AssertionError:
            raise AssertionError(f"no verdict {code}: {self.verdicts()}; {self.jobs[0].err}") from None

    def shown(self, code: str) -> dict:
        """The verdict of ``shoal show``."""
        said = self.command.json("show", self.folder)["verdicts"]
        found = next((v for v in said if v["code"] == code), None)
        assert found, said
        return found

    def end(self) -> None:
        for job in self.jobs:
            for _ in range(2):
                with contextlib.suppress(ProcessLookupError):
                    job.signal(signal.SIGINT)
            job.code()

    def judge(self, name: str, case: Case, t_us: int, step: int) -> dict:
        """Compares the verdict with the harm, and ends the run."""
        v = self.verdict(case.code)
        assert "ended" not in v, (self.verdicts(), self.jobs[0].err)
        add_row(name, case.by, v, step, (v["t"] - t_us) / 1e6)
        shown = self.shown(case.code) if case.shown else v
        self.end()
        others = {w["code"] for w in self.verdicts() if w["state"] != "ok"} - {case.code, *case.others}
        if others:
            table.append(f"{'':<22} also: " + "; ".join(w["sentence"] for w in self.verdicts() if w["code"] in others))
        for said in v, shown:
            assert said.get("rank") == case.rank, said
            assert said["state"] == case.state, said
            assert abs(said["since_step"] - step) <= case.step_off, (said, step)
        return v


CASES = {
    "straggler": Case("straggler", "a rank sleeps 30 ms in forward", step_off=3),
    "hang": Case("hang", "a lock that is never released, in forward", state="stopped"),
    "stopped": Case("silent_rank", "SIGSTOP to itself in forward", state="stopped"),
    "collective": Case("waiting", "an all_reduce that the others do not call", state="ok"),
    "stuck": Case("waiting", "time.sleep(1e9) between two steps", state="ok"),
    "slow_loader": Case("slow_loader", "collate_fn sleeps 30 ms", rank=None, step_off=3),
    "slow_loader_of_one": Case("slow_loader", "collate_fn of one rank sleeps 30 ms", step_off=3),
    "nan": Case("not_finite", "a rank's batch is NaN", state="failed"),
}
RANK_OF = {"slow_loader": -1}


@pytest.mark.parametrize("name", [n if n in ("straggler", "hang") else pytest.param(n, marks=whole) for n in CASES])
def test_a_trouble_is_named_with_its_rank_and_step(shoal_command, tmp_path, name):
    case, kind = CASES[name], name.removesuffix("_of_one")
    training = Training(shoal_command, tmp_path, [{"kind": kind, "step": STEP, "rank": RANK_OF.get(name, 1)}])
    t_us, step = training.noted(kind)
    training.judge(name, case, t_us, step)


@whole
def test_stuck_user_code_is_a_hang_after_a_while(shoal_command, tmp_path):
    training = Training(shoal_command, tmp_path, [{"kind": "stuck", "step": STEP}])
    t_us, step = training.noted("stuck")
    training.judge("stuck (later)", Case("hang", "time.sleep(1e9) between two steps"), t_us, step)


@whole
def test_a_dead_rank_is_named_with_its_step(shoal_command, tmp_path):
    training = Training(shoal_command, tmp_path, [{"kind": "dead", "step": STEP}])
    t_us, step = training.noted("dead")
    training.jobs[0].code()
    # The other rank may end with it, before its next beat shows the step.
    case = Case("dead_rank", "SIGKILL in forward", state="failed", step_off=50)
    v = training.judge("dead", case, t_us, step)
    failed = training.shown("failed")
    assert (failed["rank"], failed["since_step"]) == (1, training.shown("dead_rank")["since_step"])
    assert v["since_step"] <= step + 1


@whole
def test_a_slow_disk_is_named_with_the_rank_that_writes(shoal_command, tmp_path):
    env = {"LD_PRELOAD": str(PRELOAD), "TROUBLES_SLOW": str(tmp_path / "slow"), "TROUBLES_RANK": "1"}
    training = Training(shoal_command, tmp_path, [{"kind": "slow_disk", "step": 160}], **env)
    t_us, step = training.noted("slow_disk")
    training.judge("slow disk", Case("slow_disk", "each fsync of a rank takes 3 s more (LD_PRELOAD)"), t_us, step)


@whole
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_jumps_is_named_and_causes_no_wrong_verdict(shoal_command, tmp_path, seconds):
    env = {"LD_PRELOAD": str(PRELOAD), "TROUBLES_CLOCK": str(tmp_path / "clock")}
    training = Training(shoal_command, tmp_path, [{"kind": "clock", "step": STEP, "seconds": str(seconds)}], **env)
    t_us, step = training.noted("clock")
    training.reaches(step + 200)
    by = f"the time of day jumps by {seconds} s (LD_PRELOAD)"
    case = Case("clock_jump", by, rank=0, state="ok", shown=False)
    training.judge("clock", case, t_us + seconds * 10**6, step)
    assert not [v for v in training.verdicts() if v["state"] != "ok"]


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@whole
def test_a_full_disk_stops_the_recording_and_not_the_training(shoal_command, tmp_path, small_disk):
    training = Training(shoal_command, tmp_path, [], folder=small_disk / "run")
    training.reaches(STEP)
    before = Live.all(training.folder)[0].step
    with contextlib.suppress(OSError), open(small_disk / "filler", "ab", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 20))
    with contextlib.suppress(OSError), open(small_disk / "filler", "ab", buffering=0) as filler:
        while True:
            filler.write(bytes(512))
    t_us = time.time_ns() // 1000
    full = Live.all(training.folder)[0].step
    training.has(lambda: "the disk of the run's folder is full" in training.jobs[0].err, "verdict")
    delay_s = time.time() - t_us / 1e6
    v = training.shown("full_disk")
    add_row("full disk", "a tmpfs is filled", v, full, delay_s)
    training.reaches(full + 100)  # it trains on
    assert before <= v["since_step"] <= full + 20, (before, v, full)
    (small_disk / "filler").unlink()
    ranks = recorded(training.folder)
    training.has(lambda: all(p.events("recording_goes_on") for p in ranks), "recording")
    assert all(p.events("recording_stopped") for p in ranks)
    training.end()


@pytest.fixture
def small_memory():
    """A control group with 2 GiB. Yields its folder."""
    name = f"shoal-troubles-{os.getpid()}"
    (own,) = [line.split(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line] or [""]
    parent = Path("/sys/fs/cgroup/memory" + own) if own else Path("/sys/fs/cgroup")
    limit = "memory.limit_in_bytes" if own else "memory.max"
    group = parent / name
    try:
        group.mkdir()
        (group / limit).write_text(str(2 << 30))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group of memory here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), LIMIT_S, "the end of the group's processes")
    group.rmdir()


@whole
def test_memory_near_its_limit_is_named_with_the_rank_that_grows(shoal_command, tmp_path, small_memory):
    before = ["sh", "-c", f'echo $$ > {small_memory}/cgroup.procs && exec "$@"', "sh"]
    training = Training(shoal_command, tmp_path, [{"kind": "memory", "step": STEP, "group": str(small_memory)}], before=before)
    _, step = training.noted("memory")
    t_us, full = training.noted("memory_full")
    training.judge("memory", Case("memory", "a ballast in a control group of 2 GiB", step_off=(full - step) // 2), t_us, step)


@pytest.fixture
def hosts():
    """Two hosts, with a name each."""
    for hosts in two_hosts():
        for host in hosts.all:
            host.before += ("unshare", "--uts", "sh", "-c", f'hostname {host.name} && exec "$@"', "sh")
        yield hosts


@whole
def test_a_cut_link_is_named(hosts, tmp_path):
    training = Training(hosts.a, tmp_path, [], hosts=hosts)
    training.reaches(STEP)
    t_us = time.time_ns() // 1000
    hosts.pull_cable()
    v = training.verdict("hang")
    stands = min(page.step for page in Live.all(training.folder).values()) + 1
    add_row("cut link", "ip link set down, two namespaces", v, stands, (v["t"] - t_us) / 1e6)
    hosts.heal(hosts.a)
    training.end()
    assert abs(v["since_step"] - stands) <= 1
    assert "a link between hosts is cut" in v["sentence"]


@whole
def test_exposed_communication_is_named(hosts, tmp_path):
    hosts.set_rate(2.0)
    training = Training(hosts.a, tmp_path, [], hosts=hosts, WIDTH="512", BATCH="1024")
    training.reaches(STEP)
    step, t_us = min(page.step for page in Live.all(training.folder).values()), time.time_ns() // 1000
    hosts.set_rate(0.2)
    v = training.verdict("exposed_communication")
    add_row("exposed communication", "tc tbf: 2 Gbit/s to 0.2, two namespaces", v, step, (v["t"] - t_us) / 1e6)
    training.end()
    assert -1 <= v["since_step"] - step <= 30, (v, step)
