"""The result of a bench: rows of Shoal's figures beside a peer's, each with its goal, as a table and as JSON with every sample."""

import datetime
import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """`ours` and `peer` name series of a Report. The ratio of their medians is ours/peer or peer/ours; `goal` is a bound of the ratio:
    (">=" or "<=", x)."""

    name: str
    unit: str
    ours: str
    peer: str
    ratio: str = "ours/peer"
    goal: tuple[str, float] | None = None  # without a goal, the row only informs
    paired: bool = False  # pairs the n-th samples: the median of their ratios counts, not the ratio of medians


@dataclass
class Report:
    bench: str
    rows: list[Row]
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # by series: the reason for missing samples
    raw: list[dict] = field(default_factory=list)  # the output of each process
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, series: str, values) -> None:
        self.samples.setdefault(series, []).extend(values if isinstance(values, list) else [values])

    def value(self, row: Row) -> float | None:
        ours, peer = self.samples.get(row.ours), self.samples.get(row.peer)
        if not ours or not peer or row.ours in self.failures or row.peer in self.failures:
            return None
        if row.paired:
            return statistics.median(self.ratios(row))
        ours, peer = statistics.median(ours), statistics.median(peer)
        return ours / peer if row.ratio == "ours/peer" else peer / ours

    def ratios(self, row: Row) -> list[float]:
        """The ratios of the n-th sample of one series to the n-th of the other, in order."""
        pairs = zip(self.samples.get(row.ours, []), self.samples.get(row.peer, []), strict=False)
        return [o / p if row.ratio == "ours/peer" else p / o for o, p in pairs]

    def holds(self, row: Row) -> bool | None:
        """Returns None without a goal. A row without a figure misses its goal."""
        if row.goal is None:
            return None
        value, (sign, limit) = self.value(row), row.goal
        return value is not None and (value >= limit if sign == ">=" else value <= limit)

    def good(self) -> bool:
        return not self.failures and all(self.holds(r) is not False for r in self.rows)

    def table(self) -> str:
        lines = [("", "ours", "", "beside", "ratio", "goal", "")]
        for row in self.rows:
            value, holds = self.value(row), self.holds(row)
            lines.append(
                (
                    row.name,
                    self._cell(row.ours, row.unit),
                    row.peer,
                    self._cell(row.peer, row.unit),
                    "failed" if value is None else f"{value:.2f} {row.ratio}{self._pairs(row)}",
                    "" if row.goal is None else f"{row.goal[0]} {row.goal[1]:g}",
                    "" if holds is None else "holds" if holds else "MISS",
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join(text + [f"{series}: {why}" for series, why in self.failures.items()])

    def _pairs(self, row: Row) -> str:
        return f" ({min(self.ratios(row)):.2f} to {max(self.ratios(row)):.2f})" if row.paired else ""

    def _cell(self, series: str, unit: str) -> str:
        values = self.samples.get(series)
        return f"{quantity(statistics.median(values), unit)} ({spread(values, unit)})" if values else "no figure"

    def to_json(self, **facts) -> str:
        rows = [
            {
                "name": r.name,
                "unit": r.unit,
                "ours": r.ours,
                "peer": r.peer,
                "ours_median": _median(self.samples.get(r.ours)),
                "peer_median": _median(self.samples.get(r.peer)),
                "ratio_of": r.ratio,
                "ratio": self.value(r),
                "pair_ratios": self.ratios(r) if r.paired else None,
                "goal": None if r.goal is None else {"sign": r.goal[0], "limit": r.goal[1]},
                "holds": self.holds(r),
            }
            for r in self.rows
        ]
        head = {
            "schema": "shoal.bench.1",
            "bench": self.bench,
            "machine": machine(),
            "versions": self.versions,
            "commit": commit(),
            **facts,
        }
        return json.dumps(
            {**head, "good": self.good(), "rows": rows, "samples": self.samples, "failures": self.failures, "raw": self.raw}, indent=1
        )


def _median(values):
    return statistics.median(values) if values else None


def quantity(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def spread(values: list[float], unit: str) -> str:
    """The minimum and the maximum, as `quantity` prints them; a unit that both have is printed once."""
    low, high = quantity(min(values), unit), quantity(max(values), unit)
    if low.split(" ", 1)[1] == high.split(" ", 1)[1]:
        low, high = low.split(" ", 1)[0], high.split(" ", 1)[0]
    return f"{low} to {high}"


def machine() -> dict:
    with open("/proc/cpuinfo") as f:
        cpu = next((line.partition(":")[2].strip() for line in f if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    cores = len(os.sched_getaffinity(0))
    return {
        "cpu": cpu,
        "cores": cores,
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "at": now,
    }


def commit() -> str:
    """The measured commit; "-dirty" when files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], cwd=ROOT, capture_output=True, text=True
    )
    return said.stdout.strip() or "unknown"


def load() -> float:
    """Load average of the last minute: a sign of other work on this machine."""
    return os.getloadavg()[0]
