"""An actor's part in a graph: a thread that waits for values, makes the calls of its schedule and writes what they return.

The thread waits without the actor; only for a call it takes the actor's turn, as ordinary calls do. So an actor whose calls run one at a
time goes on doing so, whoever makes them, and takes ordinary calls while it is in graphs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from shoal import _client, _native, _serialize
from shoal._context import CallInfo, concurrent_call, method_of, parent_call, running
from shoal._ending import ActorExit, leave
from shoal._refs import ObjectRef, when_gone
from shoal._runtime import state
from shoal._worker import LATER, refuse
from shoal.dag._channels import Layout, Outgoing, Packed, Raised
from shoal.exceptions import RayChannelError

__all__ = ["Argument", "Part", "PlannedCall", "Turn", "graph_call"]


@dataclass(frozen=True)
class Argument:
    """Stands in a call's arguments for a value of the execution."""

    slot: int


@dataclass(frozen=True)
class PlannedCall:
    method: str
    args: tuple
    kwargs: dict[str, Any]
    needs: tuple[int, ...]  # slots of the values among its arguments
    reads: tuple[tuple[int, int], ...]  # (slot, channel)
    slot: int  # of its result
    writes: tuple[int, ...]  # channels


@dataclass(frozen=True)
class Part:
    """The work of one actor in a graph."""

    layout: Layout
    in_flight: int
    place: tuple[str, str]  # (job, node) of the memory
    driver: str  # the process that executes the graph
    calls: tuple[PlannedCall, ...]
    num_slots: int


class Turn:
    """The turn of an actor whose calls run one at a time: threads that wait for it get it in order."""

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
        if self._mine.acquire(False):  # it was given back just before anybody could see who waits
            self.__exit__()
        come.acquire()

    def __exit__(self, *_) -> None:
        while True:
            if self._waiting:  # only who has the turn takes somebody out
                self._waiting.popleft().release()
                return
            self._mine.release()
            if not self._waiting or not self._mine.acquire(False):  # nobody came meanwhile, or somebody else sees to them
                return


def graph_call(_instance, what: str, *args):
    """The method by which an actor is told of graphs: it opens its part, or runs it until the graph ends."""
    return _open(*args) if what == "open" else _run(*args)


_opened: dict[str, _Loop] = {}  # by the names of their memories
_by_driver: dict[str, set[_Loop]] = {}


def _open(part: Part) -> tuple[str, str] | None:
    """Nothing; or where this actor is, if the graph's memory is not there."""
    here = (state.session.job, state.session.node)
    if here != part.place:
        return here
    if running.turn is None and running.runner is None:
        running.turn = Turn(taken=True)  # by the call that is being served
    _opened[part.layout.name] = loop = _Loop(part)
    known = part.driver in _by_driver
    _by_driver.setdefault(part.driver, set()).add(loop)
    if not known:
        when_gone(part.driver, lambda driver=part.driver: _driver_gone(driver))
    return None


def _run(name: str) -> Any:
    loop = _opened.pop(name, None)
    if loop is None:  # it could not open its part, and its graph has ended
        return None
    loop.begin(parent_call())
    return LATER


class _Call:
    """One of the schedule's, with all that it needs at hand."""

    __slots__ = ("args", "function", "info", "kwargs", "needs", "plain", "reads", "slot", "where", "writes")

    def __init__(self, planned: PlannedCall, receivers: dict[int, _native.Receiver], senders: dict[int, _native.Sender]):
        given = lambda a: _client.get(a) if isinstance(a, ObjectRef) else a  # noqa: E731
        self.args = tuple(given(a) for a in planned.args)
        self.kwargs = {k: given(a) for k, a in planned.kwargs.items()}
        only = not self.kwargs and len(self.args) == 1 and type(self.args[0]) is Argument
        self.plain = self.args[0].slot if only else -1  # the slot of the only argument
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
        running.graphs[self] = incoming  # is answered when the loop ends, or the actor
        threading.Thread(target=self._serve, daemon=True, name="shoal-graph").start()

    def close(self) -> None:
        """From any thread: the driver is gone."""
        if (channels := self._channels) is not None:
            channels.close()
        if _opened.pop(self._part.layout.name, None) is not None:  # and never told it to run
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
        except RayChannelError:  # the graph was ended
            pass
        except BaseException as raised:
            error = raised
        self._channels.close()  # nobody goes on without this one
        self._outgoing.end()
        _by_driver.get(self._part.driver, set()).discard(self)
        self._forget()
        if isinstance(error, SystemExit):
            leave(error)
        elif (incoming := running.graphs.pop(self, None)) is None:  # the actor's end answers it
            pass
        elif error is not None:
            refuse(state.session, incoming, error, "a compiled graph")
        else:
            state.session.reply(incoming, *_serialize.dumps(None))

    def _execute(self) -> None:
        calls, outgoing, turn = self._calls, self._outgoing, running.turn or nullcontext()
        slots: list[Any] = [None] * self._part.num_slots
        empty = tuple(slots)
        while True:
            for call in calls:
                for slot, receiver in call.reads:
                    value = receiver.read()
                    slots[slot] = value.load(self._ended) if type(value) is Packed else value
                result = _made(call, slots, turn)
                if running.ending is not None:  # by this call, whether it let the exception pass or not, or by another
                    raise ActorExit(0)
                slots[call.slot] = result
                writes = call.writes
                if len(writes) == 1 and writes[0].write(result):
                    continue
                try:
                    outgoing.send(writes, result)
                except RayChannelError:
                    raise
                except Exception as error:  # it cannot travel
                    slots[call.slot] = failed = Raised.of(error, call.where)
                    outgoing.send(writes, failed)
            value = result = None
            slots[:] = empty


def _made(call: _Call, slots: list[Any], turn) -> Any:
    """Returns the call's result, or the exception that it, or one that it needs, raised."""
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
        return Raised.of(error, call.where)


def filled(value: Any, slots: list[Any]) -> Any:
    """Arguments with values in the places of their slots, as deep as nodes are found (``_nodes.nodes_in``)."""
    kind = type(value)
    if kind is Argument:
        return slots[value.slot]
    if kind is list or kind is tuple:
        return kind(filled(v, slots) for v in value)
    return {k: filled(v, slots) for k, v in value.items()} if kind is dict else value


def _on_actor(method: str):
    """As the actor's own calls run: on the loop of its group, of one that has methods which are coroutines."""
    function, loop_of = method_of(running.instance, method), getattr(running.runner, "loop_of", None)
    if loop_of is None:
        return function
    loop = loop_of(method)
    from shoal._concurrent import is_unfinished  # which such an actor has anyway

    async def called(args, kwargs):
        result = function(*args, **kwargs)
        return await result if is_unfinished(result) else result

    return lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(called(args, kwargs), loop).result()


def _driver_gone(driver: str) -> None:
    for loop in tuple(_by_driver.pop(driver, ())):
        loop.close()
