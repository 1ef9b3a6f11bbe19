"""``CompiledDAG``: a graph whose actors wait for its executions. One process executes it, from any of its threads."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
import time
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any

from shoal import _native
from shoal._actors.calls import GRAPH, pack_call
from shoal._actors.handle import ActorHandle
from shoal._actors.registry import kill
from shoal._core.context import running
from shoal._core.process import session as _session
from shoal._core.process import state
from shoal._objects.refs import ObjectRef, ResultRef, load, new_object_id, when_ready
from shoal._objects.values import get
from shoal.dag import _schedule
from shoal.dag._channels import Layout, Outgoing, Packed, Raised
from shoal.dag._graph import WHOLE, Graph
from shoal.dag._nodes import DAGNode, MultiOutputNode, compile_by
from shoal.exceptions import InvalidArgument, RayCgraphCapacityExceeded, RayChannelError, RayChannelTimeoutError, Unavailable, Unimplemented

__all__ = ["CompiledDAG", "CompiledDAGFuture", "CompiledDAGRef"]

_IN_FLIGHT = 10  # Ray's default
_TEARDOWN_S = 30.0  # maximum wait for running methods at a graph's end
_CAUSE_S = 5.0  # maximum wait for the cause of a graph's end


class _Running:
    """The channels and actors' parts of a graph. This object lives until the last actor has left, even if nothing refers to the graph any
    more. The channels stay mapped until then, or until ``teardown``."""

    def __init__(self, layout: Layout, channels: _native.Channels | None):
        self.layout, self.channels = layout, channels  # channels: None after teardown
        self.error: Exception | None = None  # the first cause of the end
        self.ended, self.left = threading.Event(), threading.Event()
        self.forked = False  # True in a forked child: the channels and locks are the parent's
        self._num_left, self._lock = 0, threading.Lock()
        self._parts: list[ObjectRef] = []
        _living.add(self)

    def begin(self, parts: list[ObjectRef]) -> None:
        """``parts``: the calls in which the actors run their parts."""
        self._parts = parts
        for part in parts:
            when_ready(part, lambda part=part: self._on_left(part))

    def end(self, why: Exception) -> None:
        """Ends the graph; all threads that wait for its values raise. Any thread may call this, repeatedly."""
        if self.forked:
            return
        with self._lock:
            self.error = self.error or why
        self.ended.set()
        if (channels := self.channels) is not None:
            channels.close()

    def refuse_ended(self) -> None:
        if self.error is not None or (channels := self.channels) is None or channels.closed:
            raise self.cause(RayChannelError("this graph has ended"))

    def cause(self, seen: Exception) -> Exception:
        """Returns the cause of the end for a thread whose channel was closed. It is a copy each time, because raising adds a traceback."""
        self.ended.wait(_CAUSE_S)
        return copy.copy(self.error or seen)

    def _on_left(self, part: ObjectRef) -> None:
        why = RayChannelError("an actor has left the graph")
        try:
            load(part)
        except Exception as error:
            why = error
        self.end(why)
        with self._lock:
            self._num_left += 1
            if self._num_left == len(self._parts):
                self.left.set()


class _Execution:
    """One execution, shared by the references to its results."""

    __slots__ = ("__weakref__", "dag", "values")

    def __init__(self, dag: CompiledDAG):
        self.dag = dag
        self.values: list[Any] = []  # appended as they arrive


class _Result:
    """The result of one execution, for a single ``get`` or ``await``."""

    __slots__ = ()

    def __copy__(self):
        raise ValueError(f"{type(self).__name__} cannot be copied.")

    def __deepcopy__(self, memo):
        raise ValueError(f"{type(self).__name__} cannot be deep copied.")

    def __reduce__(self):
        raise ValueError(f"{type(self).__name__} cannot be pickled.")


def _loaded(packed: Packed, running: _Running, end: float | None = None) -> Any:
    value = packed.load(running.refuse_ended, end)
    if type(value) is Raised:
        raise value.error()
    return value


class CompiledDAGRef(_Result, ResultRef):
    """A result of an execution, for a single ``shoal.get(ref)`` or ``ref.get(timeout)``. It may be dropped unread. It cannot be copied or
    sent to another process; ``wait`` does not accept it."""

    __slots__ = ("_execution", "_index")

    def __init__(self, execution: _Execution, index: int):
        self._execution, self._index = execution, index

    def get(self, timeout: float | None = None) -> Any:
        """Returns the value. Raises the method's exception, the cause if the graph has ended, or RayChannelTimeoutError after ``timeout``
        seconds (None or -1: never)."""
        execution = self._execution
        if execution is None:
            raise ValueError("get() can only be called once on a CompiledDAGRef, and it was already called.")
        values, dag = execution.values, execution.dag
        end = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        if len(values) < dag._num_outputs:
            dag._read_until(values, end)
        value = values[self._index]
        try:
            if type(value) is Packed:
                value = _loaded(value, dag._running, end)
        except (KeyboardInterrupt, RayChannelTimeoutError):
            raise
        except BaseException:
            self._execution = None
            raise
        self._execution = None
        return value

    def __repr__(self) -> str:
        return f"CompiledDAGRef({self._index})"


class CompiledDAGFuture(_Result):
    """A result of ``execute_async``, to be awaited once."""

    __slots__ = ("_future", "_running")

    def __init__(self, future: asyncio.Future, running: _Running):
        self._future, self._running = future, running

    def __await__(self):
        future = self._future
        if future is None:
            raise ValueError("CompiledDAGFuture can only be awaited upon once, and it has already been awaited upon.")
        self._future = None
        value = yield from future.__await__()
        return _loaded(value, self._running) if type(value) is Packed else value


class CompiledDAG:
    """The graph that ``experimental_compile`` returns. It ends with ``teardown``, with its last reference, or with one of its actors."""

    def __init__(self, output: DAGNode, buffer_bytes: int | None, enable_asyncio: bool, max_in_flight: int | None):
        for name, value in (("_buffer_size_bytes", buffer_bytes), ("_max_inflight_executions", max_in_flight)):
            if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__") or value < 1):
                raise ValueError(f"{name} is a positive int, not {value!r}")
        buffer_bytes = None if buffer_bytes is None else int(buffer_bytes)
        self._in_flight = max_in_flight or _IN_FLIGHT
        graph = Graph(output)
        orders = {actor: [s.call for s in steps] for actor, steps in graph.plan.steps.items()}
        if circle := _schedule.find_deadlock(graph.calls, orders):
            raise InvalidArgument(f"this graph would wait for itself: {circle}", reason="Deadlock")
        if running.actor_id in graph.actors and running.runner is None:
            raise InvalidArgument(
                f"{graph.actors[running.actor_id]!r} executes this graph and is a part of it: its call would wait for its own end",
                reason="Deadlock",
                hint="compile it in another process, or give the actor max_concurrency",
            )
        self._actors = graph.actors  # keeps the actors alive
        self._picks, self._returns_list = graph.picks, isinstance(output, MultiOutputNode)
        self._num_outputs = len(graph.plan.outputs)
        self._positions, self._keywords = graph.positions, graph.keywords
        self._asyncio = enable_asyncio
        self._text = graph.text()
        self._open(graph, buffer_bytes)
        self._submitting, self._reading = threading.Lock(), threading.Lock()
        self._submitted: deque[tuple[list, weakref.ref[_Execution]]] = deque()  # executions with unread values, in order
        self._awaited: SimpleQueue | None = None
        _compiled.add(self)
        weakref.finalize(self, self._running.end, RayChannelError("nothing refers to this graph any more"))
        if enable_asyncio:
            self._awaited = SimpleQueue()
            threading.Thread(target=_settle_all, args=(self._awaited,), daemon=True, name="shoal-graph-results").start()
            weakref.finalize(self, self._awaited.put, None)

    def _open(self, graph: Graph, buffer_bytes: int | None) -> None:
        """Opens the channels here and on all actors, which wait for executions when this returns."""
        session, plan = _session(), graph.plan
        if _end_all not in state.ending:
            state.ending.append(_end_all)
        limit = buffer_bytes or Layout.default_limit(len(plan.channels), self._in_flight)
        layout = Layout.for_limit(f"channels-{new_object_id()}", len(plan.channels), limit, self._in_flight)
        channels = layout.open()
        self._running = _Running(layout, channels)
        try:
            place = (session.job, session.node)
            opened = {}
            for actor in graph.actors:
                part = graph.part(actor, layout, self._in_flight, place, session.worker)
                opened[actor] = _call(session, graph.actors[actor], "open", part)
            for actor, ref in opened.items():
                if (elsewhere := get(ref)) is not None:
                    what = "of another job" if elsewhere[0] != place[0] else "on another node"
                    raise Unimplemented(
                        "the actors of a compiled graph share memory with the process that executes it, "
                        f"but {graph.actors[actor]!r} is {what}",
                        hint="make them on this node (NodeAffinitySchedulingStrategy of get_runtime_context().get_node_id()), or execute "
                        "the graph without compiling it",
                    )
        except BaseException:
            channels.close()
            for actor in opened:  # a part is released when it has run, and with closed channels it ends at once
                with contextlib.suppress(Exception):
                    _call(session, graph.actors[actor], "run", layout.name)
            raise
        self._senders = [(key, [_native.Sender(channels, c, layout.limit) for c in numbers]) for key, numbers in plan.inputs.items()]
        self._receivers = [_native.Receiver(channels, c, Packed) for c in plan.outputs.values()]
        self._outgoing = Outgoing(layout.limit, self._in_flight * max(1, sum(len(s) for _, s in self._senders)))
        whole = len(self._senders) == 1 and self._senders[0][0] == WHOLE and len(self._senders[0][1]) == 1
        self._only = self._senders[0][1][0] if whole else None  # the sender of a whole input that goes to one actor only
        self._running.begin([_call(session, handle, "run", layout.name) for handle in graph.actors.values()])

    # ---- executions

    def execute(self, /, *args, **kwargs) -> CompiledDAGRef | list[CompiledDAGRef]:
        """Submits an execution. Raises RayCgraphCapacityExceeded when too many executions are in flight or not fetched. To make
        room, it first waits for the oldest executions if nothing refers to their results any more."""
        if self._asyncio:
            raise ValueError("Use execute_async if enable_asyncio=True")
        execution = self._submit(args, kwargs)
        return [CompiledDAGRef(execution, k) for k in self._picks] if self._returns_list else CompiledDAGRef(execution, 0)

    async def execute_async(self, /, *args, **kwargs) -> CompiledDAGFuture | list[CompiledDAGFuture]:
        """As ``execute``, for asyncio, on a graph compiled with ``enable_asyncio``. A result that has arrived counts as fetched, even if it
        is not awaited."""
        if not self._asyncio:
            raise ValueError("Use execute if enable_asyncio=False")
        loop = asyncio.get_running_loop()
        execution = self._submit(args, kwargs)
        futures = [loop.create_future() for _ in self._picks]
        self._awaited.put((execution, list(zip(futures, self._picks, strict=True)), loop))
        results = [CompiledDAGFuture(f, self._running) for f in futures]
        return results if self._returns_list else results[0]

    def _submit(self, args: tuple, kwargs: dict[str, Any]) -> _Execution:
        execution = _Execution(self)
        with self._submitting:
            if self._running.error is not None:
                raise self._running.cause(self._running.error)
            if len(self._submitted) >= self._in_flight:
                self._make_room()
            only = self._only
            plain = only is not None and len(args) == 1 and not kwargs and only.takes(args[0])
            writes = [] if plain else self._writes(args, kwargs)
            try:
                self._submitted.append((execution.values, weakref.ref(execution)))
                if plain:
                    only.write(args[0])
                for write in writes:
                    write()
            except RayChannelError as error:
                raise self._running.cause(error) from None
            except BaseException:  # a part may have been sent, so later results would be taken for those of other executions
                self._running.end(RayChannelError("the submission of an execution was interrupted"))
                raise
        return execution

    def _writes(self, args: tuple, kwargs: dict[str, Any]) -> list:
        if len(args) != self._positions:
            raise ValueError(f"execute() must be called with {self._positions} positional args, got {len(args)}")
        for name in self._keywords:
            if name not in kwargs:
                raise ValueError(f"execute() must be called with kwarg `{name}`")
        out = []
        for (_, key), senders in self._senders:
            value = args[0] if key is None else args[key] if isinstance(key, int) else kwargs[key]
            out += self._outgoing.writes(senders, value)
        return out

    def _make_room(self) -> None:
        if self._reading.acquire(blocking=False):  # otherwise another thread waits for a result
            try:
                while len(self._submitted) >= self._in_flight and self._submitted[0][1]() is None:
                    self._read(self._submitted[0][0], None)
            finally:
                self._reading.release()
        if len(self._submitted) >= self._in_flight:
            raise RayCgraphCapacityExceeded(
                f"{len(self._submitted)} executions of this graph are under way or their results not fetched: "
                f"its _max_inflight_executions is {self._in_flight}",
                hint="get() results, or compile the graph with a larger _max_inflight_executions",
            )

    def _read_until(self, values: list, end: float | None) -> None:
        """Reads until an execution's values are present, after those of earlier executions."""
        if not self._reading.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
            raise RayChannelTimeoutError("no result within the timeout: another thread waits for an earlier one")
        try:
            while len(values) < self._num_outputs:
                self._read(self._submitted[0][0], end)
        finally:
            self._reading.release()

    def _read(self, values: list, end: float | None) -> None:
        """Reads all values of the oldest execution. After an interrupt the next call continues."""
        try:
            while len(values) < self._num_outputs:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not self._receivers:
                    raise RayChannelError("the graph was torn down")
                self._receivers[len(values)].read_into(values, left)
        except RayChannelTimeoutError:
            raise
        except RayChannelError as error:
            raise self._running.cause(error) from None
        while self._submitted and len(self._submitted[0][0]) == self._num_outputs:
            self._submitted.popleft()

    # ---- the end

    def teardown(self, kill_actors: bool = False) -> None:
        """Ends the graph: results not fetched are lost, and its memory is released. Once running methods have returned, its actors are
        ordinary ones again; ``teardown`` waits for this for up to 30 s. ``kill_actors``: also ends the actors."""
        self._running.end(RayChannelError("this graph was torn down", hint="bind its methods again and compile the new graph"))
        if kill_actors:
            for handle in self._actors.values():
                with contextlib.suppress(Exception):  # already dead
                    kill(handle)
        self._running.left.wait(_TEARDOWN_S)
        with self._submitting, self._reading:
            self._senders, self._receivers, self._only, self._running.channels = [], [], None, None
            self._outgoing.end()

    def visualize(self, *_, **__) -> str:
        """The graph as text: each actor's calls in order, with the sources of their arguments."""
        return self._text


def _call(session: _native.Session, handle: ActorHandle, *args) -> ObjectRef:
    """Calls an actor without retries: a restarted actor is in no graph."""
    return ObjectRef(session.call(handle._shoal_actor.id, GRAPH, *pack_call(args, {}), None, 0), repr(handle))


def _settle_all(awaited: SimpleQueue) -> None:
    """The thread of a graph compiled for asyncio, which delivers results to the awaiting loops."""
    while (item := awaited.get()) is not None:
        execution, futures, loop = item
        try:
            execution.dag._read_until(execution.values, None)
            error = None
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits
            loop.call_soon_threadsafe(_settle, futures, execution.values, error)
        item = execution = futures = loop = None  # so that no graph outlives its last reference


def _settle(futures: list[tuple[asyncio.Future, int]], values: list, error: Exception | None) -> None:
    for future, pick in futures:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(values[pick])
        else:
            future.set_exception(copy.copy(error))
            future.exception()  # marked as retrieved, so that a dropped future logs nothing


_living: weakref.WeakSet[_Running] = weakref.WeakSet()
_compiled: weakref.WeakSet[CompiledDAG] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    why = Unavailable(
        "this graph belongs to the process that compiled it, of which this is a forked child",
        reason="Forked",
        hint="execute it in the parent, or shoal.init() here and compile one",
    )
    for graph in tuple(_living):
        graph.forked, graph.error, graph.ended, graph.left = True, why, threading.Event(), threading.Event()
        graph.ended.set()
        graph.left.set()
    for dag in tuple(_compiled):
        dag._submitting, dag._reading = threading.Lock(), threading.Lock()
        dag._senders, dag._receivers, dag._only = [], [], None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _end_all() -> None:
    """Ends all graphs when the session closes, so that all threads that wait for their values raise."""
    for graph in tuple(_living):
        graph.end(RayChannelError("the session of this graph was closed"))


compile_by(CompiledDAG)
