"""Figures of the bench scripts: one JSON line each, the median over repetitions; and readings of processes from the kernel."""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time


def emit(name, values, unit, **extra):
    """Prints one figure. `values` is a number or the list of repetitions."""
    values = [float(v) for v in (values if isinstance(values, (list, tuple)) else [values])]
    line = {"name": name, "value": statistics.median(values), "unit": unit, "min": min(values), "max": max(values), "n": len(values)}
    print(json.dumps({**line, **extra}), flush=True)


def fail(name, error):
    print(json.dumps({"name": name, "value": None, "unit": "failed", "error": f"{type(error).__name__}: {error}"[:400]}), flush=True)


def rate(function, count):
    """Operations per second of function(), which performs `count` of them."""
    start = time.perf_counter()
    function()
    return count / (time.perf_counter() - start)


def figure_options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=100, help="of a large argument")
    parser.add_argument("--only", default="", help="figures, with commas between them")
    parser.add_argument("--limit", type=int, default=120, help="seconds for one figure")
    return parser.parse_args()


class Figures:
    """Emits each figure, or the reason why it is absent. A figure that fails does not stop the others."""

    def __init__(self, options):
        self._options, self._only = options, set(filter(None, options.only.split(",")))

    def measure(self, name, function, unit="1/s", reps=None):
        if self._wants(name):
            try:
                emit(name, [function() for _ in range(reps or self._options.reps)], unit)
            except Exception as error:
                fail(name, error)

    async def measure_async(self, name, function, unit="1/s", reps=None):
        if self._wants(name):
            try:
                emit(name, [await asyncio.wait_for(function(), self._options.limit) for _ in range(reps or self._options.reps)], unit)
            except Exception as error:
                fail(name, error)

    def _wants(self, name):
        return not self._only or name in self._only


WARM = 7  # repetitions of a figure that fills memory: enough for the median to leave out the first touch of pages
_MARK = "SHOAL_BENCH_ID"


def tag_children():
    """Puts a tag into the environment of all processes that this process starts from now on, and returns it for `family`. Earlier tags
    stay."""
    tag = f"{os.getpid()}.{time.monotonic_ns()}"
    os.environ[_MARK] = ":".join(filter(None, [os.environ.get(_MARK), tag]))
    return tag


def family(tag):
    """Living processes with the tag, and the descendants of those and of this process, without this process.

    A daemon that loses its parent keeps its environment; a process that overwrites its environment with a title keeps its parent.
    """
    parent, found = {}, {os.getpid()}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat") as f:
                state, ppid = f.read().rpartition(")")[2].split()[:2]
            if state in "ZX":
                continue
            parent[pid] = int(ppid)
            with open(f"/proc/{pid}/environ", "rb") as f:
                marks = [e for e in f.read().split(b"\0") if e.startswith(_MARK.encode() + b"=")]
            if any(tag.encode() in m.partition(b"=")[2].split(b":") for m in marks):
                found.add(pid)
    size = 0
    while size != len(found):
        size = len(found)
        found |= {c for c, p in parent.items() if p in found}
    return sorted(found - {os.getpid()})
