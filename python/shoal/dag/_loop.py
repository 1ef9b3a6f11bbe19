"""An actor's part in a graph: a thread that waits for values, makes the calls of its schedule and writes their results.

The thread takes the actor's turn only for a call, as ordinary calls do, and waits without it. So an actor with one call at a time still
runs one at a time, and accepts ordinary calls while it is in graphs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from shoal import _native
from shoal._actors.calls import GRAPH
from shoal._core import serialize
from shoal._core.context import CallInfo, concurrent_call, method_of, parent_call, running
from shoal._core.process import state
from shoal._objects.refs import ObjectRef, when_gone
from shoal._objects.values import get
from shoal._worker.built_ins import BUILT_INS
from shoal._worker.concurrency import is_unfinished
from shoal._worker.ending import ActorExit, leave
from shoal._worker.serving import LATER, refuse
from shoal.dag._channels import Layout, Outgoing, Packed, Raised
from shoal.exceptions import RayChannelError

__all__ = ["Argument", "Part", "PlannedCall", "Turn", "graph_call"]


@dataclass(frozen=True)
class Argument:
    """Stands in a call's arguments for a value of the execution, which the loop keeps in this slot."""

    slot: int


@dataclass(frozen=True)
class PlannedCall:
    method: str
    args: tuple
    kwargs: dict[str, Any]
    needs: tuple[int, ...]  # slots of the values among its arguments
    reads: tuple[tuple[int, int], ...]  # (slot, channel)
    slot: int  # slot of its result
    writes: tuple[int, ...]  # channels


@dataclass(frozen=True)
class Part:
    """The work of one actor in a graph."""

    layout: Layout
    in_flight: int
    place: tuple[str, str]  # (job, node) of the memory
    driver: str  # the executing process
    calls: tuple[PlannedCall, ...]
    num_slots: int


class Turn:
    """The lock of an actor that runs one call at a time. Waiting threads get it in order."""

    def __init__(self, taken: bool):
        self._mine, self._waiting = threading.Lock(), deque()
        if taken:
            self._mine.acquire()

    def __enter__(self) -> None:
        if not self._waiting and self._mine.acquire(False):
            return
        come = threading.Lock()
        come.acquire()
        self._waiting.append(come)
        if self._mine.acquire(False):  # released just before this thread became visible as waiting
            self.__exit__()
        come.acquire()

    def __exit__(self, *_) -> None:
        while True:
            if self._waiting:  # only the holder removes a waiting thread
                self._waiting.popleft().release()
                return
            self._mine.release()
            if not self._waiting or not self._mine.acquire(False):  # no thread waits, or another one took the lock and wakes it
                return


def graph_call(_instance, what: str, *args):
    """The built-in method for graphs: opens the actor's part, or runs it until the graph ends."""
    return _open(*args) if what == "open" else _run(*args)


_opened: dict[str, _Loop] = {}  # by the names of their memories
_by_driver: dict[str, set[_Loop]] = {}


def _open(part: Part) -> tuple[str, str] | None:
    """Opens a part. Returns None, or (job, node) of this actor if the graph's memory is elsewhere."""
    place = (state.session.job, state.session.node)
    if place != part.place:
        return place
    if running.turn is None and running.runner is None:
        running.turn = Turn(taken=True)  # taken by the call that is being served
    _opened[part.layout.name] = loop = _Loop(part)
    known = part.driver in _by_driver
    _by_driver.setdefault(part.driver, set()).add(loop)
    if not known:
        when_gone(part.driver, lambda driver=part.driver: _driver_gone(driver))
    return None


def _run(name: str) -> Any:
    loop = _opened.pop(name, None)
    if loop is None:  # its part was not opened, or its graph has ended
        return None
    loop.begin(parent_call())
    return LATER


class _Call:
    """A planned call with its receivers, senders and function."""

    __slots__ = ("args", "function", "info", "kwargs", "needs", "plain", "reads", "slot", "where", "writes")

    def __init__(self, planned: PlannedCall, receivers: dict[int, _native.Receiver], senders: dict[int, _native.Sender]):
        given = lambda a: get(a) if isinstance(a, ObjectRef) else a  # noqa: E731
        self.args = tuple(given(a) for a in planned.args)
        self.kwargs = {k: given(a) for k, a in planned.kwargs.items()}
        only = not self.kwargs and len(self.args) == 1 and type(self.args[0]) is Argument
        self.plain = self.args[0].slot if only else -1  # slot of the only argument, else -1
        self.needs, self.slot = planned.needs, planned.slot
        self.reads = [(slot, receivers[channel]) for slot, channel in planned.reads]
        self.writes = [senders[channel] for channel in planned.writes]
        self.where = f"{type(running.instance).__name__}.{planned.method}"
        self.info = CallInfo(self.where, None)
        self.function = _on_actor(planned.method)


class _Loop:
    def __init__(self, part: Part):
        self._part = part
        self._channels = part.layout.open()
        layout, mine = part.layout, part.calls
        receivers = {c: _native.Receiver(self._channels, c, Packed) for call in mine for _, c in call.reads}
        senders = {c: _native.Sender(self._channels, c, layout.limit) for call in mine for c in call.writes}
        self._outgoing = Outgoing(layout.limit, part.in_flight * max(len(senders), 1))
        self._calls = [_Call(planned, receivers, senders) for planned in mine]

    def begin(self, incoming) -> None:
        running.graphs[self] = incoming  # answered at the end of the loop or of the actor
        threading.Thread(target=self._serve, daemon=True, name="shoal-graph").start()

    def close(self) -> None:
        """Ends the part because the driver is gone; from any thread."""
        if (channels := self._channels) is not None:
            channels.close()
        if _opened.pop(self._part.layout.name, None) is not None:  # the driver never asked to run it
            self._forget()

    def _ended(self) -> None:
        if self._channels.closed:
            raise RayChannelError("this graph has ended")

    def _forget(self) -> None:
        self._calls = self._channels = self._outgoing = None

    def _serve(self) -> None:
        error = None
        try:
            self._execute()
        except RayChannelError:  # the graph has ended
            pass
        except BaseException as raised:
            error = raised
        self._channels.close()  # the graph cannot go on without this actor
        self._outgoing.end()
        _by_driver.get(self._part.driver, set()).discard(self)
        self._forget()
        if isinstance(error, SystemExit):
            leave(error)
        elif (incoming := running.graphs.pop(self, None)) is None:  # the actor's end answers the call
            pass
        elif error is not None:
            refuse(state.session, incoming, error, "a compiled graph")
        else:
            state.session.reply(incoming, *serialize.dumps(None))

    def _execute(self) -> None:
        calls, outgoing, turn = self._calls, self._outgoing, running.turn or nullcontext()
        slots: list[Any] = [None] * self._part.num_slots
        empty = tuple(slots)
        while True:
            for call in calls:
                for slot, receiver in call.reads:
                    value = receiver.read()
                    slots[slot] = value.load(self._ended) if type(value) is Packed else value
                result = _result_of(call, slots, turn)
                if running.ending is not None:  # by this call, even if it caught the exception, or by another
                    raise ActorExit(0)
                slots[call.slot] = result
                writes = call.writes
                if len(writes) == 1 and writes[0].write(result):
                    continue
                try:
                    outgoing.send(writes, result)
                except RayChannelError:
                    raise
                except Exception as error:  # the result cannot be pickled
                    slots[call.slot] = failed = Raised.from_error(error, call.where)
                    outgoing.send(writes, failed)
            value = result = None
            slots[:] = empty


def _result_of(call: _Call, slots: list[Any], turn) -> Any:
    """Returns the call's result, or the exception of this call or of one that it needs."""
    for slot in call.needs:
        if type(slots[slot]) is Raised:
            return slots[slot]
    try:
        concurrent_call.set(call.info)
        if call.plain >= 0:
            with turn:
                return call.function(slots[call.plain])
        args, kwargs = filled(call.args, slots), filled(call.kwargs, slots)
        with turn:
            return call.function(*args, **kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next or error.__traceback__
        return Raised.from_error(error, call.where)


def filled(value: Any, slots: list[Any]) -> Any:
    """Replaces slots in arguments by values, in the containers that ``_nodes.nodes_in`` searches."""
    kind = type(value)
    if kind is Argument:
        return slots[value.slot]
    if kind is list or kind is tuple:
        return kind(filled(v, slots) for v in value)
    return {k: filled(v, slots) for k, v in value.items()} if kind is dict else value


def _on_actor(method: str):
    """Returns the method as the actor's own calls run it: an async actor's on the loop of its group."""
    function, loop_of = method_of(running.instance, method), getattr(running.runner, "loop_of", None)
    if loop_of is None:
        return function
    loop = loop_of(method)

    async def called(args, kwargs):
        result = function(*args, **kwargs)
        return await result if is_unfinished(result) else result

    return lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(called(args, kwargs), loop).result()


def _driver_gone(driver: str) -> None:
    for loop in tuple(_by_driver.pop(driver, ())):
        loop.close()


BUILT_INS[GRAPH] = graph_call
