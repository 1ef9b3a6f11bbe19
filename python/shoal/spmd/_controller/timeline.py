"""A trace of the ranks' operators, for a program that drives ranks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from shoal.exceptions import InvalidArgument
from shoal.spmd._layout import processes


@contextlib.contextmanager
def timeline(path: str | os.PathLike) -> Iterator[None]:
    """``with xs.timeline("step.json"):`` writes a trace of the statements inside for Perfetto or chrome://tracing. Each rank has a row with
    its operators and the script's lines, and inside of them its waits for other ranks. The controller's row shows the collection of
    batches. Times are from the hosts' clocks. Leaving the block waits for the ranks. Raises InvalidArgument in a program that drives no
    ranks."""
    controller = processes.controller
    if controller is None:
        raise InvalidArgument(
            "this program has no workers: its operators run in this process",
            hint="use_spmd(workers=N), or torch.profiler.profile() for this process",
        )
    controller.trace()
    try:
        yield
    finally:
        collected, ranks = controller.traced()
    begins = [span[1] for rank in ranks for span in rank] + [begin for begin, *_ in collected]
    zero = min(begins, default=0.0)
    events = [_named(0, "controller")]
    events += [_event(f"{items} items", 0, begin, end, zero) for begin, end, items in collected]
    for rank, spans in enumerate(ranks):
        events.append(_named(rank + 1, f"rank {rank}"))
        events += [_event(name, rank + 1, begin, end, zero, line) for name, begin, end, line in spans]
    with open(path, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _named(row: int, name: str) -> dict:
    return {"ph": "M", "name": "process_name", "pid": row, "args": {"name": name}}


def _event(name: str, row: int, begin: float, end: float, zero: float, line: str = "") -> dict:
    at = {"ts": round((begin - zero) * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
    return {"ph": "X", "name": name, "pid": row, "tid": 0, **at, **({"args": {"line": line}} if line else {})}


__all__ = ["timeline"]
