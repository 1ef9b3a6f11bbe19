"""Figures of xoscar's actors on one host, named as in actor_figures.py: python xoscar_figures.py [--reps N] [--only a,b].

An actor lives in a process of a pool. Calls wait in asyncio; ``StatelessActor`` takes no lock for a call, which is faster than ``Actor``.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

import numpy as np
import xoscar as mo
from figures import WARM, Figures, figure_options

options = figure_options(__doc__)
N = options.batch


class Plain(mo.StatelessActor):
    @mo.extensible  # many calls may share one message
    def ping(self, x=None):
        return b"ok"

    def pid(self):
        return os.getpid()

    def take(self, x):
        return float(x[-1])

    async def stall(self):
        await asyncio.sleep(600)


BEGIN = """
import time
a = time.perf_counter()
import asyncio, xoscar as mo
class A(mo.StatelessActor):
    def ping(self):
        return b"ok"
async def main():
    pool = await mo.create_actor_pool("127.0.0.1", n_process=1, auto_recover=False)
    where = mo.allocate_strategy.ProcessIndex(1)
    await (await mo.create_actor(A, address=pool.external_address, allocate_strategy=where)).ping()
    print("took", time.perf_counter() - a, flush=True)
    await pool.stop()
if __name__ == "__main__":
    asyncio.run(main())
"""


async def begin():
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", BEGIN], capture_output=True, text=True, check=True)
    return float(next(line for line in done.stdout.splitlines() if line.startswith("took ")).split()[1])


async def pool_of(count):
    return await mo.create_actor_pool("127.0.0.1", n_process=count, auto_recover=False)


async def spawn(pool, index):
    where = mo.allocate_strategy.ProcessIndex(index)
    return await mo.create_actor(Plain, address=pool.external_address, allocate_strategy=where)


async def rate(calls, count):
    begin = time.perf_counter()
    await calls
    return count / (time.perf_counter() - begin)


async def create_twenty(count=20):
    begin = time.perf_counter()
    pool = await pool_of(count)
    actors = await asyncio.gather(*[spawn(pool, 1 + i) for i in range(count)])
    await asyncio.gather(*[a.ping() for a in actors])
    took = time.perf_counter() - begin
    await pool.stop()
    return took


async def death():
    pool = await pool_of(1)
    victim = await spawn(pool, 1)
    pid = await victim.pid()
    pending = asyncio.create_task(victim.stall())
    await asyncio.sleep(0.5)
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        await asyncio.wait_for(pending, 60)
    except asyncio.TimeoutError:
        raise
    except Exception:
        took = time.perf_counter() - begin
        await pool.stop()
        return took
    raise RuntimeError("the call on a killed process returned")


async def main():
    figures = Figures(options)
    await figures.measure_async("begin", begin, "s")
    pool = await pool_of(4)

    async def create():
        begin = time.perf_counter()
        address = await pool.append_sub_pool()
        actor = await mo.create_actor(Plain, address=address)
        await actor.ping()
        took = time.perf_counter() - begin
        await pool.remove_sub_pool(address)
        return took

    await figures.measure_async("actor", create, "s")
    await figures.measure_async("actors20", create_twenty, "s")
    a, *others = [await spawn(pool, i) for i in (1, 2, 3, 4)]

    async def one_by_one(count=N):
        for _ in range(count):
            await a.ping()

    async def batches():
        for _ in range(5):
            await asyncio.gather(*[a.ping() for _ in range(N)])

    async def messages():
        for _ in range(5):
            await a.ping.batch(*[a.ping.delay() for _ in range(N)])

    async def mesh(count, together):
        for _ in range(count // together):
            await asyncio.gather(*[x.ping() for _ in range(together) for x in (a, *others)])

    await mesh(200, 50)
    await figures.measure_async("calls_sync", lambda: rate(one_by_one(), N))
    await figures.measure_async("calls_batched", lambda: rate(batches(), 5 * N))
    await figures.measure_async("calls_in_one_message", lambda: rate(messages(), 5 * N))
    await figures.measure_async("mesh_sync", lambda: rate(mesh(N // 2, 1), N // 2))
    await figures.measure_async("mesh_batched", lambda: rate(mesh(N, N), N))

    array = np.ones(options.megabytes * 10**6 // 8)
    memory = bytes(array)

    async def argument(value):
        begin = time.perf_counter()
        await a.take(value)
        return options.megabytes / 1e3 / (time.perf_counter() - begin)

    await figures.measure_async("argument_first", lambda: argument(array), "GB/s", reps=1)
    await figures.measure_async("argument", lambda: argument(array), "GB/s", reps=WARM)
    await figures.measure_async("argument_bytes", lambda: argument(memory), "GB/s", reps=WARM)
    await figures.measure_async("death", death, "s")
    await pool.stop()


if __name__ == "__main__":
    asyncio.run(main())
