"""Actors that run several calls at once: on threads, and on an event loop."""

import asyncio
import os
import sys
import threading

import shoal as ray


@ray.remote
class Threaded:
    """Counts the callers inside, and releases them together."""

    def __init__(self):
        self.lock, self.inside, self.most, self.begun = threading.Lock(), 0, 0, []
        self.made_in = threading.current_thread() is threading.main_thread()

    def enter(self, who, gate):
        with self.lock:
            self.begun.append(who)
            self.inside += 1
            self.most = max(self.most, self.inside)
        ray.get(gate.arrive.remote(who))
        with self.lock:
            self.inside -= 1
        return who

    def state(self):
        return self.most, self.begun

    def fail(self):
        raise KeyError("mine")

    def leave(self):
        ray.actor.exit_actor()

    def leave_when_open(self, gate):
        ray.get(gate.arrive.remote("leave", "leave"))
        ray.actor.exit_actor()

    def leave_with(self, code, gate):
        ray.get(gate.note.remote(code))
        sys.exit(code)

    def pid(self):
        return os.getpid()

    def context(self, gate, name):
        ray.get(gate.arrive.remote(name))
        return ray.get_runtime_context().get_task_name(), ray.get_runtime_context().get_task_id()


def ended(actor):
    ray.kill(actor)


@ray.remote
class Async:
    def __init__(self):
        self.loop_there = asyncio.get_running_loop() is not None
        self.thread = threading.get_ident()
        self.begun, self.inside, self.most, self.event = [], 0, 0, asyncio.Event()

    async def enter(self, who):
        self.begun.append(who)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.event.wait()
        self.inside -= 1
        return who

    def release(self):
        self.event.set()

    def seen(self):
        return self.most, self.begun

    async def one_thread(self):
        return self.loop_there and self.thread == threading.get_ident()

    def sync_one_thread(self):
        return asyncio.get_running_loop() is not None and self.thread == threading.get_ident()

    async def fail(self):
        raise KeyError("mine")

    async def cancel(self):
        raise asyncio.CancelledError

    async def leave(self):
        ray.actor.exit_actor()

    async def leave_when_open(self, gate):
        await gate.arrive.remote("leave", "leave")
        ray.actor.exit_actor()

    def pid(self):
        return os.getpid()

    async def get_of(self, refs):
        return [await r for r in refs]

    async def through(self, handle, method, *args):
        return await getattr(handle, method).remote(*args)

    @ray.method(num_returns=2)
    async def pair(self):
        return 1, 2

    async def name(self):
        await asyncio.sleep(0)
        return ray.get_runtime_context().get_task_name()

    def submits(self, handle, method, *args):
        return getattr(handle, method).remote(*args)

    def passes(self, coroutine):
        return asyncio.sleep(0, 5) if coroutine else asyncio.ensure_future(asyncio.sleep(0, 6))
