"""Figures of Monarch's actors on one host, named as in actor_figures.py: python monarch_figures.py [--reps N] [--only a,b].

A process per actor, as in Shoal. Calls wait with ``.get()`` in the main thread; several processes of one kind are one mesh.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
from figures import WARM, Figures, figure_options, rate
from monarch import actor as monarch
from monarch.actor import Actor, endpoint, this_host

options = figure_options(__doc__)
N = options.batch
monarch.unhandled_fault_hook = lambda failure: None  # by default a dead process ends this one, too


class Plain(Actor):
    @endpoint
    def ping(self, x=None):
        return b"ok"

    @endpoint
    def take(self, x):
        return float(x[-1])


class Sleeper(Actor):  # a class of its own, because a class has endpoints of one kind only
    @endpoint
    async def pid(self):
        return os.getpid()

    @endpoint
    async def stall(self):
        await asyncio.sleep(600)


def processes(count):
    return this_host().spawn_procs(per_host={"procs": count})


def stop(*meshes):
    for stopped in [m.stop() for m in meshes]:
        stopped.get()


BEGIN = """
import time
a = time.perf_counter()
from monarch.actor import Actor, endpoint, this_host
class A(Actor):
    @endpoint
    def ping(self):
        return b"ok"
this_host().spawn_procs(per_host={"procs": 1}).spawn("a", A).ping.call_one().get()
print("took", time.perf_counter() - a, flush=True)
import os
os._exit(0)
"""


def begin():
    said = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, text=True, timeout=options.limit, check=True).stdout
    return float(next(line for line in said.splitlines() if line.startswith("took ")).split()[1])


def create(count):
    begin = time.perf_counter()
    meshes = [processes(1) for _ in range(count)]
    actors = [m.spawn("a", Plain) for m in meshes]
    for answer in [a.ping.call_one() for a in actors]:
        answer.get()
    took = time.perf_counter() - begin
    stop(*meshes)
    return took


def create_mesh(count=20):
    begin = time.perf_counter()
    mesh = processes(count)
    mesh.spawn("a", Plain).ping.call().get()
    took = time.perf_counter() - begin
    stop(mesh)
    return took


def death():
    mesh = processes(1)
    victim = mesh.spawn("victim", Sleeper)
    pid = victim.pid.call_one().get()
    pending = victim.stall.call_one()
    time.sleep(random.uniform(0.5, 4))  # a random moment, because Monarch polls its children periodically
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        pending.get(timeout=60)
    except TimeoutError:
        raise
    except Exception:
        return time.perf_counter() - begin
    raise RuntimeError("the call on a killed process returned")


def main():
    figures = Figures(options)
    figures.measure("begin", begin, "s")
    figures.measure("actor", lambda: create(1), "s")
    figures.measure("actors20", lambda: create(20), "s")
    figures.measure("actors20_one_mesh", create_mesh, "s")

    mesh = processes(1)
    a = mesh.spawn("a", Plain)

    def batch(count=N):
        for answer in [a.ping.call_one() for _ in range(count)]:
            answer.get()

    batch(200)
    figures.measure("calls_sync", lambda: rate(lambda: [a.ping.call_one().get() for _ in range(N)], N))
    figures.measure("calls_batched", lambda: rate(lambda: [batch() for _ in range(5)], 5 * N))

    array = np.ones(options.megabytes * 10**6 // 8)
    memory = bytes(array)

    def argument(value):
        begin = time.perf_counter()
        a.take.call_one(value).get()
        return options.megabytes / 1e3 / (time.perf_counter() - begin)

    figures.measure("argument_first", lambda: argument(array), "GB/s", reps=1)
    figures.measure("argument", lambda: argument(array), "GB/s", reps=WARM)
    figures.measure("argument_bytes", lambda: argument(memory), "GB/s", reps=WARM)
    stop(mesh)

    mesh = processes(4)
    four = mesh.spawn("four", Plain)
    four.ping.call().get()
    figures.measure("mesh_sync", lambda: rate(lambda: [four.ping.call().get() for _ in range(N // 2)], N // 2))
    figures.measure("mesh_batched", lambda: rate(lambda: [f.get() for f in [four.ping.call() for _ in range(N)]], N))
    stop(mesh)
    figures.measure("death", death, "s")
    sys.stdout.flush()
    os._exit(0)  # leaves out the end of Monarch's threads


if __name__ == "__main__":
    main()
