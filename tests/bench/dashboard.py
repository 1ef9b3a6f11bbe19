"""The dashboard with 20,000 actors, 10,000 jobs and a week of steps, in Debian's Chromium beside plain files (about 20 minutes)."""

import contextlib
import functools
import gzip
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from launch import HERE, PEERS, ROOT, Failed, run, say
from launching.commands import Command, Running
from launching.filled import filled
from launching.leftovers import wait_until
from report import Report, Row

NEEDS_PEERS = False
BROWSER = ROOT / ".venv-browser" / "bin" / "python"
RANKS = 8
SECOND, CORE, FOLDER, PAGE = "a second", "1 % of a core", "200 MB", "300 kB"
ROWS = {
    "page": [Row("the page, compressed", "kB", "page", PAGE, goal=("<=", 1))],
    "cluster": [
        Row("first paint of a cluster", "s", "first paint", SECOND, goal=("<=", 1)),
        Row("  beside a plain file of its size", "s", "first paint", "plain file"),
        Row("  beside Ray's page, as plain files without data", "s", "first paint", "Ray's page"),
        Row("until the list of runs is there", "s", "runs", SECOND, goal=("<=", 1)),
        Row("until 100 of 20,000 actors are there", "s", "actors", SECOND, goal=("<=", 1)),
        Row("  their next page", "s", "next page", SECOND, goal=("<=", 1)),
        Row("until 100 of 10,000 jobs are there", "s", "jobs", SECOND, goal=("<=", 1)),
        Row("until 100 of 10,000 nodes are there", "s", "nodes", SECOND, goal=("<=", 1)),
        Row("until the output of a job is there", "s", "logs", SECOND, goal=("<=", 1)),
    ],
    "look": [
        Row("CPU of the head that three people who look cost", "%", "three people", CORE, goal=("<=", 1)),
        Row("  all of it meanwhile, with 30,000 actors and jobs that wait", "%", "three look", CORE, goal=("<=", 1)),
        Row("  while nobody looks", "%", "nobody looks", CORE),
        Row("CPU of `shoal dashboard --run` while three look at the run", "%", "three look at the run", CORE, goal=("<=", 1)),
    ],
    "week": [
        Row("folder of a week of steps, 8 ranks", "MB", "week", FOLDER, goal=("<=", 1)),
        Row("`shoal show` of it", "s", "show", SECOND, goal=("<=", 1)),
        Row("first paint of it", "s", "first paint of a week", SECOND, goal=("<=", 1)),
        Row("until its charts are there", "s", "charts of a week", SECOND, goal=("<=", 1)),
    ],
}


def add_options(parser):
    parser.add_argument("--only", choices=list(ROWS), action="append", help="only these rows, as often as needed")
    parser.add_argument("--rounds", type=int, default=7, help="page loads of a figure")
    parser.add_argument("--seconds", type=int, default=30, help="for which three people look")
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--step-ms", type=int, default=250)


def measure(options) -> Report:
    parts = options.only or list(ROWS)
    report = Report("dashboard", [row for part in ROWS if part in parts for row in ROWS[part]])
    for limit, value in ((SECOND, 1.0), (CORE, 1.0), (FOLDER, 200.0), (PAGE, 300.0)):
        report.add(limit, value)
    with tempfile.TemporaryDirectory(prefix="shoal-bench.") as root:
        folder = Path(root)
        if "page" in parts:
            report.add("page", len(gzip.compress(page(), 9)) / 1000)
        for part in ("cluster", "week"):
            if part not in parts and not (part == "cluster" and "look" in parts):
                continue
            try:
                {"cluster": _cluster, "week": _week}[part](report, folder / part, parts, options)
            except (Failed, AssertionError, subprocess.SubprocessError) as error:
                report.failures[part] = str(error)
    return report


def page() -> bytes:
    return (ROOT / "scheduler/web/page/dist/index.html").read_bytes()


def _looks(*words) -> dict:
    return json.loads(run([BROWSER, HERE / "dashboard_looks.py", *words], limit=400).splitlines()[-1])


def _seconds(report: Report, name: str, milliseconds: list[float]) -> None:
    report.add(name, [one / 1000 for one in milliseconds])


@contextlib.contextmanager
def _command(folder: Path):
    home = folder / "home"
    home.mkdir(parents=True, mode=0o700)
    command = Command(home)
    try:
        yield command
    finally:
        command("stop", "--all")
        command.end()


@contextlib.contextmanager
def _files(folder: Path):
    """Serves a folder's files as they are."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.func.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _cluster(report: Report, folder: Path, parts: list[str], options) -> None:
    with _command(folder) as command:
        say("bench dashboard: a head with 20,000 actors, 10,000 jobs and 10,000 nodes that are gone")
        cluster, _ = filled(command, ROOT / "bazel-bin/scheduler/state/fill_store")
        with _living_run(command) as name:
            url = command.json("dashboard")["url"]
            if "cluster" in parts:
                _paints(report, folder, url, options)
            if "look" in parts:
                _three_look(report, command, cluster, url, name, options)


def _paints(report: Report, folder: Path, url: str, options) -> None:
    plain = folder / "plain"
    plain.mkdir()
    rest = "<!-- " + "x" * (len(page()) - 60) + " -->"
    (plain / "index.html").write_text(f"<!doctype html><title>plain</title><p>a plain file</p>{rest}")
    for _ in range(options.rounds):  # in turn
        ours = _looks("paint", url, "the newest first", 1)
        _seconds(report, "first paint", ours["first"])
        _seconds(report, "runs", ours["content"])
        with _files(plain) as other:
            _seconds(report, "plain file", _looks("paint", other, "a plain file", 1)["first"])
        if client := next(PEERS.parent.glob("lib/python3*/site-packages/ray/dashboard/client/build"), None):
            with _files(client) as other:
                _seconds(report, "Ray's page", _looks("paint", other, "Overview", 1)["first"])
    if "Ray's page" not in report.samples:
        report.rows = [row for row in report.rows if row.peer != "Ray's page"]
    for name, values in _looks("rows", url, options.rounds).items():
        _seconds(report, name, values)


@contextlib.contextmanager
def _living_run(command: Command):
    """A run in $SHOAL_HOME/runs whose ranks write steps, 5 a second. Its last rank is slow. No rank computes anything."""
    synthetic = ROOT / "tests/dashboard/synthetic_run.py"
    words = ["--ranks", str(RANKS), "--hosts", "2", "--steps", "2000", "--trouble", "straggler", "--live"]
    running = command.program([sys.executable, str(synthetic), str(command.home / "runs" / "living"), *words])
    wait_until(lambda: command("show", "living").returncode == 0, 60, "the run's folder")
    try:
        yield "living"
    finally:
        running.signal(signal.SIGTERM)
        running.code()


def _cpu_s(pid: int) -> float:
    """CPU time of a process's threads, which stay the same."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _percent(pid: int, seconds: float) -> float:
    begin, cpu = time.perf_counter(), _cpu_s(pid)
    time.sleep(seconds)
    return 100 * (_cpu_s(pid) - cpu) / (time.perf_counter() - begin)


def _looked_at(report: Report, url: str, name: str, third: str, pid: int, seconds: int) -> float:
    words = [BROWSER, HERE / "dashboard_looks.py", "look", url, name, third, seconds + 10]
    looks = Running([str(word) for word in words], dict(os.environ), HERE)
    looks.said("they look", 120)
    time.sleep(2)
    out = _percent(pid, seconds)
    if looks.code() != 0:
        raise Failed(looks.err.strip()[-300:])
    report.raw.append({"url": re.sub("token=.*", "token=..", url), **json.loads(looks.out.splitlines()[-1])})
    return out


def _three_look(report: Report, command: Command, cluster, url: str, name: str, options) -> None:
    head = cluster.pid("head")
    say("bench dashboard: nobody looks, then three people do")
    wait_until(lambda: _percent(head, 1) < 2, 300, "the end of the head's explanations of what waits")
    idle = _percent(head, options.seconds)
    looked_at = _looked_at(report, url, name, "actors", head, options.seconds)
    report.add("nobody looks", idle)
    report.add("three look", looked_at)
    report.add("three people", max(looked_at - idle, 0))
    serving = command.popen("dashboard", "--run", name)
    serving.said("#token=")
    wait_until(lambda: "\n" in serving.out, 10, "the address")
    report.add("three look at the run", _looked_at(report, serving.out.splitlines()[0], name, "events", serving.pid, options.seconds))
    serving.signal(signal.SIGINT)
    serving.code()


def _week(report: Report, folder: Path, parts: list[str], options) -> None:
    """One rank writes its folder; the others' are copies with another number."""
    with _command(folder) as command:
        run_folder = command.home / "runs" / "week"
        say(f"bench dashboard: {options.days:g} days of steps of {options.step_ms} ms, one rank")
        begin = time.perf_counter()
        made = json.loads(run([ROOT / "bazel-bin/tests/bench/cpp/week", run_folder, options.days, options.step_ms], limit=1800))
        report.raw.append({**made, "seconds_to_write": time.perf_counter() - begin})
        first = Path(made["folder"])
        for rank in range(1, RANKS):
            _copy_as_rank(first, rank)
        _set_world(first)
        size = sum(f.stat().st_size for f in run_folder.rglob("*") if f.is_file())
        report.add("week", size / 1e6)
        for _ in range(options.rounds):
            begin = time.perf_counter()
            done = command("show", "week")
            report.add("show", time.perf_counter() - begin)
            if done.returncode != 0 or f"step {made['steps']}" not in done.stdout:
                raise Failed(done.stderr + done.stdout[:300])
        for _ in range(options.rounds):
            serving = command.popen("dashboard", "--run", "week")
            serving.said("#token=")
            wait_until(lambda serving=serving: "\n" in serving.out, 10, "the address")
            seen = _looks("paint", serving.out.splitlines()[0], "exposed communication", 1)
            _seconds(report, "first paint of a week", seen["first"])
            _seconds(report, "charts of a week", seen["content"])
            serving.signal(signal.SIGINT)
            serving.code()


def _set_world(folder: Path) -> None:
    facts = json.loads((folder / "process.json").read_text())
    (folder / "process.json").write_text(json.dumps({**facts, "world": RANKS}))


def _copy_as_rank(first: Path, rank: int) -> None:
    copy = first.with_name(f"{first.name.rsplit('-', 2)[0]}-{1_000_000 + rank}-{first.name.rsplit('-', 1)[1]}")
    shutil.copytree(first, copy)
    for file in copy.glob("*.jsonl"):
        file.write_text(file.read_text().replace('"rank":0,', f'"rank":{rank},'))
    facts = json.loads((copy / "process.json").read_text())
    (copy / "process.json").write_text(json.dumps({**facts, "rank": rank, "world": RANKS, "pid": 1_000_000 + rank}))
    live = bytearray((copy / "live").read_bytes())
    live[48:52] = rank.to_bytes(4, "little")
    (copy / "live").write_bytes(live)
