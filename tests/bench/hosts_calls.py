"""Calls on an actor of another host (network namespaces, TLS), beside a bare ping-pong over TCP between the same hosts. Needs root.

The C++ program is that of `bench calls`, with jemalloc."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from launch import OURS, ROOT, Failed, say
from report import Report, Row

NEEDS_PEERS = False
BUILT = ROOT / "bazel-bin" / "tests" / "bench" / "cpp"
ROWS = [
    Row("one C++ call after the other", "1/s", "call", "TCP ping-pong"),
    Row("one C++ call after the other", "1/s", "call", "TCP ping-pong, two cores", goal=(">=", 0.7)),
    Row("one C++ call after the other", "1/s", "call", "TCP ping-pong, one core"),
    Row("10,000 C++ calls pipelined", "1/s", "pipelined", "TCP ping-pong"),
    Row("1 MiB there and back, C++", "1/s", "1 MiB", "TCP ping-pong"),
    Row("one Python call after the other", "1/s", "Python call", "TCP ping-pong"),
    Row("100 MB to an actor and back, Python", "1/s", "100 MB", "TCP ping-pong"),
]
PYTHON = """
import json, os, sys, time
import numpy as np
import shoal

@shoal.remote(num_cpus=1)
class Echo:
    def same(self, value):
        return value

shoal.init(address=sys.argv[1])
echo = Echo.remote()
shoal.get(echo.same.remote(0))

def measure(name, value, calls, rounds):
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            shoal.get(echo.same.remote(value))
        samples.append(calls / (time.perf_counter() - begin))
    print(json.dumps({"name": name, "per_second": samples}), flush=True)

measure("Python call", 1, 2000, 5)
measure("100 MB", np.zeros(100_000_000, np.uint8), 1, 5)
"""


def add_options(parser):
    parser.add_argument("--rounds", type=int, default=3, help="repetitions, calls and ping-pong in turn")


@contextlib.contextmanager
def _cluster():
    """Yields (hosts, address of the head). Only the node of the other host has CPUs, so that actors run there."""
    os.environ["PATH"] = f"{OURS}{os.pathsep}{os.environ['PATH']}"
    from launching.hosts import A, Hosts, join, two_hosts

    if why := Hosts.why_not():
        raise Failed(why)
    for hosts in two_hosts():
        said = hosts.a.json("start", "--head", "--host", A, "--port", "0", "--num-cpus", "0", "--include-dashboard", "0")
        cluster = type("Cluster", (), {"address": said["address"], "fingerprint": said["ca_fingerprint"]})
        cluster.token = Path(said["session"]) / "token"
        join(hosts.b, cluster)
        yield hosts, said["address"]


def _run(host, *argv, **env) -> str:
    done = subprocess.run([*host.before, *map(str, argv)], env=host.env(**env), capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise Failed(f"exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


def _tcp(hosts, name: str, ping: int, pong: int) -> str:
    """Measures round trips over TCP between the hosts. `ping`, `pong`: the core of each end, -1 for any."""
    answers = [*hosts.b.before, BUILT / "ping_pong", "echo", hosts.b.address, str(pong)]
    with subprocess.Popen(answers, stdout=subprocess.PIPE, text=True) as echo:
        try:
            return _run(hosts.a, BUILT / "ping_pong", "tcp", hosts.b.address, echo.stdout.readline().strip(), ping, name)
        finally:
            echo.kill()


def measure(options) -> Report:
    report = Report("hosts_calls", ROWS)
    try:
        with _cluster() as (hosts, address):
            programs = {
                "ping-pong": lambda: _tcp(hosts, "TCP ping-pong", -1, -1),
                "ping-pong, two cores": lambda: _tcp(hosts, "TCP ping-pong, two cores", 0, 1),
                "ping-pong, one core": lambda: _tcp(hosts, "TCP ping-pong, one core", 0, 0),
                "calls": lambda: _run(hosts.a, BUILT / "calls", SHOAL_ADDRESS=address),
                "python": lambda: _run(hosts.a, sys.executable, "-c", PYTHON, address),
            }
            for r in range(options.rounds):
                say(f"bench hosts_calls: round {r + 1} of {options.rounds}")
                for program, run in programs.items():
                    try:
                        lines = run().splitlines()
                    except (Failed, subprocess.TimeoutExpired) as error:
                        report.failures[program] = str(error)
                        continue
                    for figure in map(json.loads, lines):
                        report.add(figure["name"], figure["per_second"])
                        report.raw.append({"program": program, "round": r + 1, **figure})
    except Failed as error:
        report.failures["hosts"] = str(error)
    return report
