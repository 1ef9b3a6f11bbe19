"""Actors that count calls and hold handles, and the end of an actor as the head records it."""

import atexit
import gc
import os
from pathlib import Path

from launching.leftovers import wait_until
from semantics_actors import GUARD_S

import shoal as ray


def row(actor_id):
    (found,) = (r for r in ray._core.process.session().list("actors") if r["id"] == actor_id)
    return found


def ends(actor_id):
    wait_until(lambda: row(actor_id)["state"] == "DEAD", GUARD_S, "the end of the actor")


@ray.remote
class Counts:
    def __init__(self, hand_over=None):
        self.calls = 0
        if hand_over:
            atexit.register(lambda: Path(hand_over).write_text("bye"))

    def call(self):
        self.calls += 1
        return self.calls

    def numbers(self, n):
        yield from range(n)

    def touch_itself(self):
        me = ray.get_runtime_context().current_actor
        del me
        gc.collect()

    def introduce(self, holder, me):
        ray.get(holder.keep.remote(me))

    def has(self, holder):
        """Keeps a handle of `holder`, which in turn keeps this actor's current_actor."""
        self.holder = holder
        ray.get(holder.keep.remote([ray.get_runtime_context().current_actor]))

    def fails_until(self, n):
        if self.call() < n:
            raise ValueError("again")
        return self.calls


@ray.remote
class Holder:
    def __init__(self, handles=None):
        self.handles = handles

    def keep(self, handles):
        self.handles = handles

    def make(self):
        self.handles = [Counts.remote()]
        return self.handles[0]._actor_id, ray.get(self.handles[0].call.remote())

    def drop(self):
        self.handles.clear()

    def call(self):
        return ray.get(self.handles[0].call.remote())

    def begin(self, gate):
        """Makes calls that have to wait, and drops the handle on which they were made."""
        (actor,) = self.handles
        refs = [actor.wait_at.remote(gate, "", 7), *(actor.echo.remote(k) for k in range(3))]
        refs.append(actor.echo.remote(gate.wait.remote("late", "x")))
        self.handles.clear()
        return refs

    def pass_on(self, other):
        ray.get(other.keep.remote(self.handles))

    def call_of(self, name):
        return ray.get(ray.get_actor(name).call.remote())

    def pid(self):
        return os.getpid()


def still_there(actor_id, call):
    """Checks that an actor is alive, after another one has ended: an end that was requested wrongly would have come before that."""
    gc.collect()
    other = Counts.remote()
    other_id, kept = other._actor_id, ray.put([other])
    del other, kept
    ends(other_id)
    first = ray.get(call(), timeout=GUARD_S)
    assert [ray.get(call(), timeout=GUARD_S) for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert row(actor_id)["state"] == "ALIVE"
