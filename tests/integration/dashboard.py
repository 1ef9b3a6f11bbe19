"""The dashboard for Grafana (docs/grafana/shoal.json): its expressions, and a cluster in which each of them finds series."""

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import shoal
from shoal.util.metrics import Counter

ROOT = next(p for p in (Path(), Path(__file__).parents[2]) if (p / "docs" / "grafana").exists()).absolute()
NVML = "runtime/device/nvml/fake/libfake_nvml.so"
LIBRARY = next((str(p) for p in (ROOT / NVML, ROOT / "bazel-bin" / NVML) if p.exists()), NVML)
FUNCTIONS = {"sum", "by", "rate"}


@dataclass(frozen=True)
class Target:
    """One line of a panel: a PromQL expression, and the labels in its legend."""

    panel: str
    expr: str
    legend: str

    @property
    def series(self) -> set[str]:
        bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", self.expr)
        return set(re.findall(r"[a-z_][a-z_0-9]*", bare)) - FUNCTIONS

    @property
    def labels(self) -> set[str]:
        matched = re.findall(r"[{,]\s*(\w+)(?:=|!)", self.expr)
        grouped = [name for group in re.findall(r"\bby \(([^)]*)\)", self.expr) for name in group.split(", ")]
        return {*matched, *grouped, *re.findall(r"\{\{(\w+)\}\}", self.legend)}

    @property
    def query(self) -> str:
        """The expression as Grafana sends it for all nodes."""
        return self.expr.replace("$__rate_interval", "1m").replace("$node", ".*")


def targets() -> list[Target]:
    panels = json.loads((ROOT / "docs" / "grafana" / "shoal.json").read_text())["panels"]
    return [Target(p["title"], t["expr"], t["legendFormat"]) for p in panels for t in p.get("targets", [])]


def documented() -> set[str]:
    """The series that scheduler/web/README.md lists. A name that begins with "_" replaces as many words of the last one."""
    text = (ROOT / "scheduler" / "web" / "README.md").read_text().partition("## Measurements")[2]
    found: list[str] = []
    for name in re.findall(r"`((?:shoal_|process_|_)[a-z_0-9]+)`", text):
        words = name.strip("_").split("_")
        found.append("_".join([*found[-1].split("_")[: -len(words)], *words]) if name.startswith("_") else name)
    return set(found)


@shoal.remote(num_cpus=0, max_concurrency=2)
class Busy:
    """Has a call that runs, one that has ended, and a metric."""

    def __init__(self):
        import threading

        self.gate = threading.Event()

    def wait(self):
        self.gate.wait()

    def count(self):
        Counter("tracker_lost", "Entries that a tracker did not take.", ("tracker",)).inc(2, {"tracker": "MLflow"})

    def end(self):
        self.gate.set()


@contextlib.contextmanager
def busy_cluster(shoal_command):
    """A cluster whose host has GPUs of a fake, with calls that run. Returns what `shoal start` has printed."""
    env = shoal_command.env(SHOAL_NVML_LIBRARY=LIBRARY, SHOAL_FAKE_NVML=f"ecc=3 pid={os.getpid()}; mig=2")
    head = shoal_command.json("start", "--head", "--num-cpus", "2", "--port", "0", "--dashboard-port", "0", env=env)
    shoal.init(address=head["address"])
    actor = Busy.remote()
    waits = actor.wait.remote()
    shoal.get(actor.count.remote())
    try:
        yield head
        shoal.get(actor.end.remote())
        shoal.get(waits)
    finally:
        shoal.shutdown()
        shoal_command.json("stop")
