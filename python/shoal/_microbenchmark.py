"""``shoal microbenchmark``: operations per second on this machine, in a private cluster. Names and units match Ray's command, for
comparison; the rounds are shorter."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import shoal as ray
from shoal._core.command import run_command
from shoal.util import placement_group, remove_placement_group

_BATCH = 1000  # calls that are made before their answers are awaited
_ROUNDS = 3
_OTHERS = 4  # number of concurrent callers

Figure = tuple[str, Callable[[], object], float]  # name, timed function, units per run


@ray.remote
def _task():
    return b"ok"


@ray.remote
class _Actor:
    def answer(self, argument=None):
        return b"ok"

    def call(self, others, count: int, argument=None) -> None:
        """Makes ``count`` calls, in turns on each of ``others``."""
        ray.get([others[i % len(others)].answer.remote(*([] if argument is None else [argument])) for i in range(count)])

    def tasks(self, count: int) -> None:
        ray.get([_task.remote() for _ in range(count)])

    def put(self, value, count: int) -> None:
        for _ in range(count):
            ray.put(value)


@ray.remote
class _AsyncActor:
    async def answer(self, argument=None):
        await asyncio.sleep(0)
        return b"ok"


def _objects() -> Iterator[Figure]:
    value, putters = ray.put(0), [_Actor.remote() for _ in range(_OTHERS)]
    yield "single client get calls (Plasma Store)", lambda: ray.get(value), 1
    yield "single client put calls (Plasma Store)", lambda: ray.put(0), 1
    yield "multi client put calls (Plasma Store)", lambda: ray.get([p.put.remote(0, _BATCH) for p in putters]), _BATCH * _OTHERS
    large = bytes(128 << 20)
    yield "single client put gigabytes", lambda: ray.put(large), len(large) / 2**30
    many = ray.put([ray.put(i) for i in range(10_000)])
    yield "single client get object containing 10k refs", lambda: ray.get(many), 1


def _tasks() -> Iterator[Figure]:
    def wait_for_each():
        left = [_task.remote() for _ in range(_BATCH)]
        while left:
            _, left = ray.wait(left)

    callers = [_Actor.remote() for _ in range(_OTHERS)]
    yield "single client tasks and get batch", lambda: ray.get([_task.remote() for _ in range(_BATCH)]), 1
    yield "single client wait 1k refs", wait_for_each, 1
    yield "single client tasks sync", lambda: ray.get(_task.remote()), 1
    yield "single client tasks async", lambda: ray.get([_task.remote() for _ in range(_BATCH)]), _BATCH
    yield "multi client tasks async", lambda: ray.get([c.tasks.remote(_BATCH) for c in callers]), _BATCH * _OTHERS


def _calls(kind: str, cls, *, more: bool) -> Iterator[Figure]:
    one, several, callers = cls.remote(), [cls.remote() for _ in range(2)], [_Actor.remote() for _ in range(_OTHERS)]

    def of_all(*arguments):
        ray.get([c.call.remote(several, _BATCH, *arguments) for c in callers])

    yield f"1:1 {kind} calls sync", lambda: ray.get(one.answer.remote()), 1
    yield f"1:1 {kind} calls async", lambda: ray.get([one.answer.remote() for _ in range(_BATCH)]), _BATCH
    if more:
        threads = cls.options(max_concurrency=16).remote()
        yield f"1:1 {kind} calls concurrent", lambda: ray.get([threads.answer.remote() for _ in range(_BATCH)]), _BATCH
    else:
        yield f"1:1 {kind} calls with args async", lambda: ray.get([one.answer.remote(i) for i in range(_BATCH)]), _BATCH
    yield f"1:n {kind} calls async", lambda: ray.get(callers[0].call.remote(several, _BATCH)), _BATCH
    yield f"n:n {kind} calls async", of_all, _BATCH * _OTHERS
    if more:
        yield f"n:n {kind} calls with arg async", lambda: of_all(0), _BATCH * _OTHERS


def _groups() -> Iterator[Figure]:
    def make_and_remove():
        groups = [placement_group([{"room": 0.001}]) for _ in range(100)]
        for group in groups:
            group.wait(30)
            remove_placement_group(group)

    yield "placement group create/removal", make_and_remove, 100


def _figures() -> Iterator[Figure]:
    yield from _objects()
    yield from _tasks()
    yield from _calls("actor", _Actor, more=True)
    yield from _calls("async-actor", _AsyncActor, more=False)
    yield from _groups()


def _measured(run: Callable[[], object], units: float, seconds: float) -> tuple[float, float]:
    """Returns (mean, standard deviation) of the units per second, over rounds that take ``seconds`` together. An untimed run comes
    first."""
    run()
    rounds = []
    for _ in range(_ROUNDS):
        count, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < seconds / _ROUNDS or count == 0:
            run()
            count += 1
        rounds.append(count * units / took)
    return statistics.mean(rounds), statistics.pstdev(rounds)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="shoal microbenchmark")
    parser.add_argument("--filter", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    ray.init(num_cpus=max(os.cpu_count() or 1, 2 * _OTHERS), resources={"room": 1}, log_to_driver=False)
    results = []
    for name, run, units in _figures():
        if options.filter not in name:
            continue
        mean, deviation = _measured(run, units, options.seconds)
        results.append({"name": name, "per_second": mean, "deviation": deviation})
        if not options.json:
            print(name, "per second", round(mean, 2), "+-", round(deviation, 2), flush=True)
    ray.shutdown()
    if options.json:
        print(json.dumps({"schema": "shoal.microbenchmark/1", "results": results}))
    if not results:
        print(f"no figure has {options.filter!r} in its name", file=sys.stderr)
    return 0 if results else 2


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
