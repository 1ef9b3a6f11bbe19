"""Figures of a runtime with Ray's API on one host: python actor_figures.py ray|shoal [--reps N] [--only a,b]. A JSON line per figure; a
figure that fails is printed as failed, and the rest still runs."""

import argparse
import collections
import contextlib
import functools
import importlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
from figures import WARM, emit, fail, family, rate, tag_children

parser = argparse.ArgumentParser()
parser.add_argument("module", choices=["ray", "shoal"])
parser.add_argument("--reps", type=int, default=3)
parser.add_argument("--cpus", type=int, default=2)
parser.add_argument("--batch", type=int, default=1000)
parser.add_argument("--gigabytes", type=float, default=1.0)
parser.add_argument("--megabytes", type=int, default=100, help="of a large argument")
parser.add_argument("--only", default="")
parser.add_argument("--limit", type=int, default=120, help="seconds for one figure, all repetitions together")
options = parser.parse_args()
only = set(filter(None, options.only.split(",")))
N, CPUS = options.batch, options.cpus
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
TAG = tag_children()
COMMAND = os.path.join(os.path.dirname(sys.executable), options.module)


@contextlib.contextmanager
def guard(*names):
    """Records these figures as failed when the body raises, exits or takes too long."""

    def late(*_):
        raise TimeoutError(f"no result in {options.limit} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(options.limit)
    try:
        yield
    except (Exception, SystemExit) as error:
        for name in names:
            fail(name, error)
    finally:
        signal.alarm(0)


def measure(name, function, unit="1/s", reps=None):
    if not only or name in only:
        with guard(name):
            emit(name, [function() for _ in range(reps or options.reps)], unit)


def command(*words):
    begin = time.perf_counter()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, **pipes, text=True, timeout=options.limit)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:2])}: exit code {done.returncode}: {(done.stdout.strip().splitlines() or [''])[-1]}")
    return time.perf_counter() - begin, done.stdout


def memory_of(pids):
    """MiB that these processes hold; a shared page counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def idle_memory(settle):
    time.sleep(settle)
    pids = family(TAG)
    if not pids:
        raise RuntimeError("no process of the cluster was found")
    return memory_of(pids), len(pids)


# ---- a cluster's beginning and end

LIFE = f"""
import time
a = time.perf_counter()
import {options.module} as ray
b = time.perf_counter()
ray.init(num_cpus={CPUS}, logging_level="ERROR")
c = time.perf_counter()
ray.shutdown()
d = time.perf_counter()
ray.init(num_cpus={CPUS}, logging_level="ERROR")
e = time.perf_counter()
print("took", b - a, c - b, d - c, e - d)
"""

BEGIN = f"""
import time
a = time.perf_counter()
import {options.module} as ray
ray.init(num_cpus={CPUS}, logging_level="ERROR")
@ray.remote(num_cpus=0)
class A:
    def ping(self):
        return b"ok"
actor = A.remote()
ray.get(actor.ping.remote())
print("took", time.perf_counter() - a)
"""


def took(program):
    """Runs a program, and returns the figures that it prints at its end."""
    said = command(sys.executable, "-c", program)[1]
    return [float(x) for x in next(line for line in said.splitlines() if line.startswith("took ")).split()[1:]]


if not only or "begin" in only:
    with guard("begin"):
        emit("begin", [took(BEGIN)[0] for _ in range(options.reps)], "s")

if not only or "life" in only:
    names = ["import", "init_first", "shutdown", "init_second"]
    with guard(*names):
        lives = [took(LIFE) for _ in range(options.reps)]
        for i, name in enumerate(names):
            emit(name, [life[i] for life in lives], "s")

if not only or "cluster" in only:
    with guard("start_head", "stop", "idle_start_head"):
        up, down, memory, count = [], [], [], 0
        try:
            for _ in range(options.reps):
                up.append(command(COMMAND, "start", "--head", f"--num-cpus={CPUS}")[0])
                held, count = idle_memory(8)
                memory.append(held)
                down.append(command(COMMAND, "stop")[0])
        finally:  # ends what `stop` has left, or a head that failed to start
            for pid in family(TAG):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        emit("start_head", up, "s")
        emit("stop", down, "s")
        emit("idle_start_head", memory, "MiB", processes=count)

try:
    ray = importlib.import_module(options.module)
    ray.init(num_cpus=CPUS, logging_level="ERROR", object_store_memory=int(6e9))
except (Exception, SystemExit) as error:
    fail("init_for_the_rest", error)
    sys.exit(1)

if not only or "memory" in only:
    with guard("idle_init"):
        held, count = idle_memory(10)
        emit("idle_init", held, "MiB", processes=count)


# ---- actors


class Plain:
    def ping(self, x=None):
        return b"ok"

    def call_peer(self, peer, n):
        ray.get([peer.ping.remote() for _ in range(n)])

    def take(self, x):
        return float(x[-1])

    def pid(self):
        return os.getpid()

    def stall(self):
        time.sleep(600)


@functools.cache
def remote_class():
    return ray.remote(num_cpus=0)(Plain)


made = {}


def actor(name):
    """The actor of this name, made and warmed up at its first use."""
    if name not in made:
        made[name] = remote_class().remote()
        ray.get([made[name].ping.remote() for _ in range(200)])
    return made[name]


def drop(*names):
    for a in filter(None, [made.pop(n, None) for n in names]):
        with contextlib.suppress(Exception):
            ray.kill(a)


def create_first():
    begin = time.perf_counter()
    a = remote_class().remote()
    ray.get(a.ping.remote())
    took = time.perf_counter() - begin
    ray.kill(a)
    time.sleep(1)  # time in which a runtime may start spare workers again
    return took


def create_many(count=20):
    begin = time.perf_counter()
    actors = [remote_class().remote() for _ in range(count)]
    ray.get([a.ping.remote() for a in actors])
    took = time.perf_counter() - begin
    for a in actors:
        ray.kill(a)
    time.sleep(3)
    return took


def calls_sync():
    a = actor("a")
    return rate(lambda: [ray.get(a.ping.remote()) for _ in range(N)], N)


def calls_batched():
    a = actor("a")
    return rate(lambda: [ray.get([a.ping.remote() for _ in range(N)]) for _ in range(5)], 5 * N)


def calls_n_n():
    """Calls per second of two callers, each of which calls an actor of its own."""
    a, b, c, d = map(actor, "abcd")
    ray.get([a.call_peer.remote(b, 50), c.call_peer.remote(d, 50)])
    return rate(lambda: ray.get([a.call_peer.remote(b, 2 * N), c.call_peer.remote(d, 2 * N)]), 4 * N)


def graph(length, under_way):
    """Executions per second of a chain of actors as a compiled graph, `under_way` at a time."""
    dag = importlib.import_module(options.module + ".dag")
    with dag.InputNode() as node:
        for x in "abc"[:length]:
            node = actor(x).ping.bind(node)
    compiled = node.experimental_compile()

    def go(count):
        refs = collections.deque()
        for _ in range(count):
            if len(refs) == under_way:
                ray.get(refs.popleft())
            refs.append(compiled.execute(b"x"))
        while refs:
            ray.get(refs.popleft())

    try:
        go(N)
        return rate(lambda: go(5 * N), 5 * N)
    finally:
        compiled.teardown()


def mesh(count, together):
    """Calls per second over four actors, `together` at a time on each."""
    four = [actor(x) for x in "abcd"]
    return rate(
        lambda: [ray.get([x.ping.remote() for _ in range(together) for x in four]) for _ in range(count // together)],
        count,
    )


def argument(value):
    """GB/s of a call with this value as a direct argument."""
    sink = actor("sink")
    begin = time.perf_counter()
    ray.get(sink.take.remote(value))
    return options.megabytes / 1e3 / (time.perf_counter() - begin)


def death():
    """Seconds from the end of a process to the failure of its running call."""
    victim = remote_class().remote()
    pid = ray.get(victim.pid.remote())
    pending = victim.stall.remote()
    time.sleep(0.5)
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        ray.get(pending, timeout=60)
    except TimeoutError:
        raise
    except Exception:
        return time.perf_counter() - begin
    raise RuntimeError("the call on a killed process returned")


measure("actor", create_first, "s", reps=max(5, options.reps))
measure("actors20", create_many, "s")
measure("calls_sync", calls_sync)
measure("calls_batched", calls_batched)
measure("calls_n_n", calls_n_n)
measure("graph_sync", lambda: graph(1, 1))
measure("graph_pipelined", lambda: graph(1, 8))
measure("graph_chain_sync", lambda: graph(3, 1))
measure("graph_chain_pipelined", lambda: graph(3, 8))
measure("mesh_sync", lambda: mesh(N // 2, 1))
measure("mesh_batched", lambda: mesh(N, N))
drop("b", "c", "d")
large = np.ones(options.megabytes * 10**6 // 8)
measure("argument_first", lambda: argument(large), "GB/s", reps=1)
measure("argument", lambda: argument(large), "GB/s", reps=WARM)
large = bytes(large)
measure("argument_bytes", lambda: argument(large), "GB/s", reps=WARM)
drop("sink")
large = None
measure("death", death, "s")


# ---- tasks


@functools.cache
def trivial():
    def f():
        return b"ok"

    f = ray.remote(f)
    ray.get([f.remote() for _ in range(100)])
    return f


def tasks_sync():
    f = trivial()
    return rate(lambda: [ray.get(f.remote()) for _ in range(N // 2)], N // 2)


def tasks_batched():
    f = trivial()
    return rate(lambda: ray.get([f.remote() for _ in range(2 * N)]), 2 * N)


measure("tasks_sync", tasks_sync)
measure("tasks_batched", tasks_batched)


# ---- objects

small = b"x" * 100
big = np.ones(int(options.gigabytes * 1e9) // 8)
held = {}


def puts():
    return rate(lambda: [ray.put(small) for _ in range(2 * N)], 2 * N)


def gets():
    ref = ray.put(small)
    return rate(lambda: [ray.get(ref) for _ in range(2 * N)], 2 * N)


def put_big():
    held.clear()
    time.sleep(1)
    begin = time.perf_counter()
    held["ref"] = ray.put(big)
    return big.nbytes / 1e9 / (time.perf_counter() - begin)


def big_ref():
    if not held:
        put_big()
    return held["ref"]


def get_big():
    ref = big_ref()
    begin = time.perf_counter()
    value = ray.get(ref)
    took = time.perf_counter() - begin
    assert value[-1] == 1.0
    return took


def pass_big():
    sink, ref = actor("sink"), big_ref()
    ray.get(sink.take.remote(np.ones(4)))
    begin = time.perf_counter()
    ray.get(sink.take.remote(ref))
    return time.perf_counter() - begin


def copy_big():
    """The memory bandwidth, as a limit for objects: a copy into pages that were touched before."""
    if "copy" not in held:
        held["copy"] = np.empty_like(big)
        np.copyto(held["copy"], big)
    begin = time.perf_counter()
    np.copyto(held["copy"], big)
    return big.nbytes / 1e9 / (time.perf_counter() - begin)


measure("put_small", puts)
measure("get_small", gets)
measure("put_big", put_big, "GB/s", reps=WARM)
measure("get_big", get_big, "s", reps=WARM)
measure("pass_big", pass_big, "s", reps=WARM)
held.clear()
measure("copy_big", copy_big, "GB/s")
drop("sink")
held.clear()


# ---- waiting, placement groups


@functools.cache
def thousand():
    return [ray.put(i) for i in range(1000)]


def wait_ready():
    refs = thousand()
    begin = time.perf_counter()
    for _ in range(20):
        ready, _rest = ray.wait(refs, num_returns=1000)
    assert len(ready) == 1000
    return (time.perf_counter() - begin) / 20


def wait_by_ten():
    refs = [actor("a").ping.remote() for _ in range(1000)]
    begin = time.perf_counter()
    while refs:
        _, refs = ray.wait(refs, num_returns=min(10, len(refs)))
    return time.perf_counter() - begin


def groups(count=500):
    module = importlib.import_module(options.module + ".util.placement_group")

    def go():
        for _ in range(count):
            group = module.placement_group([{"CPU": 0.01}])
            assert group.wait(10)
            module.remove_placement_group(group)

    return rate(go, count)


measure("wait_ready", wait_ready, "s")
thousand.cache_clear()
measure("wait_by_ten", wait_by_ten, "s")
measure("groups", groups)
ray.shutdown()
