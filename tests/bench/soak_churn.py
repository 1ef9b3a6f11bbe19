"""The driver of `./dev bench soak`: creates and drops objects of every kind for --seconds, and checks their values.

It prints a JSON line when it is warm ("at": "warm"), and then waits for a line. It prints the count of each activity after the churn,
and a line when it has dropped everything. Then it stays until its stdin ends.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import sys
import time

import numpy as np

import shoal
from shoal.exceptions import ActorDiedError, TaskCancelledError, TaskError, Unavailable
from shoal.job_submission import JobStatus, JobSubmissionClient
from shoal.util import ActorPool, placement_group, remove_placement_group
from shoal.util.queue import Queue
from shoal.util.scheduling_strategies import PlacementGroupSchedulingStrategy

GUARD_S = 120  # hang guard; an idle machine needs less than a tenth


@shoal.remote
class Worker:
    def __init__(self):
        self.kept = {}

    def pid(self):
        return os.getpid()

    def keep(self, name, value):
        self.kept[name] = value
        return len(self.kept)

    def total(self, value):
        return float(np.sum(value))

    def get_all(self, refs):
        return sum(float(v[0]) for v in shoal.get(refs))

    def fail(self):
        raise ValueError("on purpose")

    def stall(self):
        time.sleep(600)

    def items(self, count):
        for i in range(count):
            yield np.full(30_000, i)

    def leave(self):
        shoal.exit_actor()


@shoal.remote
class Async:
    async def stall(self):
        await asyncio.sleep(600)

    async def echo(self, value):
        await asyncio.sleep(0)
        return value


@shoal.remote
def double(x):
    return x + x


@shoal.remote
def make(count):
    return np.ones(count)


@shoal.remote
def tree(depth):
    return 1 if depth == 0 else sum(shoal.get([tree.remote(depth - 1) for _ in range(2)]))


@shoal.remote(max_retries=0)
def fail():
    raise KeyError("on purpose")


def get(refs):
    return shoal.get(refs, timeout=GUARD_S)


def raises(kind, ref):
    try:
        get(ref)
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was to be raised")


# ---- activities


def actors_killed(rng):
    actors = [Worker.remote() for _ in range(rng.randint(1, 4))]
    get([a.keep.remote("x", bytes(rng.randint(1, 300_000))) for a in actors])
    for a in actors:
        shoal.kill(a)
    raises(ActorDiedError, actors[0].pid.remote())


def actors_dropped(rng):
    actors = [Worker.remote() for _ in range(rng.randint(1, 4))]
    assert len(set(get([a.pid.remote() for a in actors]))) == len(actors)


def actors_that_leave(rng):
    actor = Worker.remote()
    raises(ActorDiedError, actor.leave.remote())


def actors_by_sigkill(rng):
    actor = Worker.remote()
    pid, pending = get(actor.pid.remote()), actor.stall.remote()
    os.kill(pid, signal.SIGKILL)
    raises(ActorDiedError, pending)
    raises(ActorDiedError, actor.pid.remote())


def actors_started_again(rng):
    actor = Worker.options(max_restarts=1, max_task_retries=2).remote()
    first = get(actor.pid.remote())
    os.kill(first, signal.SIGKILL)
    assert get(actor.pid.remote()) != first
    shoal.kill(actor)


def async_actors(rng):
    actor = Async.remote()
    assert get([actor.echo.remote(i) for i in range(50)]) == list(range(50))
    waiting = actor.stall.remote()
    shoal.cancel(waiting)
    raises(TaskCancelledError, waiting)


def detached_actors(rng):
    name = f"detached-{rng.random()}"
    actor = Worker.options(name=name, lifetime="detached").remote()
    assert get(shoal.get_actor(name).keep.remote("a", 1)) == 1
    shoal.kill(actor)


def objects_put(rng):
    small = [shoal.put(i) for i in range(200)]
    large = [shoal.put(np.full(rng.randint(20_000, 400_000), i, dtype=float)) for i in range(4)]
    assert sum(get(small)) == sum(range(200))
    assert [v[0] for v in get(large)] == [0, 1, 2, 3]
    actor = Worker.remote()
    assert get(actor.total.remote(large[1])) == get(large[1]).size
    assert get(actor.get_all.remote(large)) == 6.0
    shoal.kill(actor)


def large_arguments(rng):
    actor = Worker.remote()
    for _ in range(3):
        value = np.ones(rng.randint(10_000, 500_000))
        assert get(actor.total.remote(value)) == value.size
    assert [float(get(r)[0]) for r in actor.items.remote(5)] == [0, 1, 2, 3, 4]
    unread = actor.items.remote(20)
    next(unread)


def tasks(rng):
    refs = [double.remote(double.remote(i)) for i in range(40)]
    ready, rest = shoal.wait(refs, num_returns=10, timeout=GUARD_S)
    assert len(ready) == 10
    assert sum(get(ready + rest)) == 4 * sum(range(40))
    assert get(make.remote(100_000)).sum() == 100_000
    raises(KeyError, fail.remote())
    assert get(tree.remote(3)) == 8


def calls_that_fail(rng):
    actor = Worker.remote()
    for _ in range(20):
        raises(TaskError, actor.fail.remote())
    assert get([actor.pid.remote() for _ in range(500)])


def awaited(rng):
    actor = Worker.remote()

    async def many():
        return await asyncio.gather(*[actor.keep.remote(i, i) for i in range(100)])

    assert asyncio.run(many()) == list(range(1, 101))
    assert actor.pid.remote().future().result(GUARD_S)


def groups(rng):
    group = placement_group([{"CPU": 0.1}] * rng.randint(1, 4), strategy="PACK")
    assert group.wait(GUARD_S)
    inside = Worker.options(num_cpus=0.1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    get(inside.pid.remote())
    remove_placement_group(group)
    raises(ActorDiedError, inside.stall.remote())
    waiting = placement_group([{"CPU": 1000}])
    remove_placement_group(waiting)


def helpers(rng):
    pool = ActorPool([Worker.remote() for _ in range(2)])
    assert list(pool.map(lambda a, v: a.total.remote(v), [np.ones(n) for n in (1, 2, 3, 4)])) == [1, 2, 3, 4]
    queue = Queue(maxsize=10)
    queue.put_nowait_batch(list(range(10)))
    assert queue.get_nowait_batch(10) == list(range(10))
    queue.shutdown()


def jobs(rng):
    client = reached(JobSubmissionClient)
    job = f"job-{rng.getrandbits(64):x}"
    reached(lambda: None if job in submitted(client) else client.submit_job(entrypoint="echo hello", submission_id=job))
    end = time.monotonic() + GUARD_S
    while not (status := reached(lambda: client.get_job_status(job))).is_terminal():
        assert time.monotonic() < end, f"{job} is {status}"
        time.sleep(0.05)
    assert status == JobStatus.SUCCEEDED, reached(lambda: client.get_job_info(job))
    assert reached(lambda: client.get_job_logs(job)) == "hello\n"
    reached(lambda: client.delete_job(job) if job in submitted(client) else None)


def submitted(client):
    return [j.submission_id for j in client.list_jobs()]


def reached(ask):
    """Calls `ask` again until a head answers."""
    end = time.monotonic() + GUARD_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


ACTIVITIES = [
    actors_killed, actors_dropped, actors_that_leave, actors_by_sigkill, actors_started_again, async_actors, detached_actors,
    objects_put, large_arguments, tasks, calls_that_fail, awaited, groups, helpers, jobs,
]  # fmt: skip


def say(at, **more):
    print(json.dumps({"at": at, **more}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="activities, with commas between them")
    options = parser.parse_args()
    wanted = [a for a in ACTIVITIES if not options.only or a.__name__ in options.only.split(",")]
    rng, counts = random.Random(options.seed), collections.Counter()
    shoal.init(address="auto", log_to_driver=False)

    def cycle():
        for activity in rng.sample(wanted, len(wanted)):
            begin = time.monotonic()
            try:
                activity(rng)
            except BaseException as error:
                error.add_note(f"in {activity.__name__}, after {dict(counts)}") if hasattr(error, "add_note") else None
                raise
            counts[activity.__name__] += 1
            longest[activity.__name__] = max(longest.get(activity.__name__, 0), time.monotonic() - begin)

    longest = {}
    cycle()
    say("warm", pid=os.getpid())
    sys.stdin.readline()
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        cycle()
    say("churned", counts=counts, longest_s={k: round(v, 3) for k, v in longest.items()})
    sys.stdin.read()
    shoal.shutdown()


if __name__ == "__main__":
    main()
