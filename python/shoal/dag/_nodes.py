"""Nodes of a graph: its input, bound calls that are not made yet, its outputs. ``execute`` makes the calls as ordinary ones."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from shoal._core.numbers import whole
from shoal._objects.refs import ObjectRef
from shoal.exceptions import Unimplemented

__all__ = [
    "ClassMethodNode",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
    "compile_by",
    "nodes_in",
    "replaced",
]

_numbers = itertools.count()
_compilers: list[Callable] = []  # CompiledDAG, whose module imports this one


def compile_by(compiler: Callable) -> None:
    _compilers[:] = [compiler]


class DAGNode:
    """A value in each execution of its graph. ``bind`` accepts it as an argument, also in lists, tuples and dicts."""

    def __init__(self, args: tuple = (), kwargs: dict[str, Any] | None = None):
        self._args, self._kwargs = args, kwargs or {}
        self._number = next(_numbers)  # in the order of creation
        self._compiled = False
        self._downstream: list[weakref.ref[DAGNode]] = []
        for node in self._needs():
            node._downstream.append(weakref.ref(self))

    def _needs(self) -> list[DAGNode]:
        """The nodes among its current arguments."""
        return list(nodes_in((self._args, self._kwargs)))

    def execute(self, /, *args, **kwargs) -> ObjectRef | list[ObjectRef]:
        """Makes the calls of the graph as ordinary calls. Returns a reference to the result; for a MultiOutputNode a list of references."""
        return self._evaluate({}, args, kwargs)

    def _evaluate(self, values: dict[int, Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Returns this node's value in one execution, for the arguments of calls."""
        if self._number not in values:
            for node in self._in_order():
                if node._number not in values:
                    values[node._number] = node._make(lambda value: replaced(value, lambda n: values[n._number]), args, kwargs)
        return values[self._number]

    def _make(self, resolved: Callable[[Any], Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _graph(self) -> list[DAGNode]:
        """This node and all that it needs, in the order of creation."""
        found, more = {self}, [self]
        while more:
            new = set(more.pop()._needs()) - found
            found |= new
            more += new
        return sorted(found, key=lambda node: node._number)

    def _in_order(self) -> list[DAGNode]:
        """All that this node needs, and the node itself last. ValueError for a cycle."""
        out: list[DAGNode] = []
        state: dict[DAGNode, bool] = {}  # True once its needs are done
        stack = [(self, iter(self._needs()))]
        state[self] = False
        while stack:
            node, needs = stack[-1]
            needed = next(needs, None)
            if needed is None:
                state[node] = True
                out.append(node)
                stack.pop()
            elif needed not in state:
                state[needed] = False
                stack.append((needed, iter(needed._needs())))
            elif not state[needed]:
                raise ValueError(f"{needed!r} depends on its own result, so the graph would never end")
        return out

    def experimental_compile(
        self,
        _submit_timeout: float | None = None,
        _buffer_size_bytes: int | None = None,
        enable_asyncio: bool = False,
        _max_inflight_executions: int | None = None,
        _max_buffered_results: int | None = None,
        _overlap_gpu_communication: bool | None = None,
        _default_communicator: Any = "create",
    ):
        """Returns a CompiledDAG: the actors of this graph wait for its executions, and values pass between them without messages.

        ``_buffer_size_bytes`` (1,000,000, or less with many channels, which share 256 MiB): larger values lie in separate shared memory.
        ``_max_inflight_executions`` (10): the limit of executions whose results are not fetched. ``_submit_timeout`` and
        ``_max_buffered_results`` have no effect: submission never waits, and results belong to their references.
        """
        if _overlap_gpu_communication:
            raise Unimplemented("_overlap_gpu_communication is not supported: graphs move no tensors between GPUs")
        if self._compiled:
            raise ValueError("this graph was compiled already: use what that returned, or bind another one")
        compiled = _compilers[0](self, _buffer_size_bytes, enable_asyncio, _max_inflight_executions)
        self._compiled = True
        return compiled

    def with_tensor_transport(self, *_, **__):
        raise Unimplemented("with_tensor_transport is not supported: graphs move tensors through shared memory only")

    with_type_hint = with_tensor_transport


class InputNode(DAGNode):
    """The arguments of ``execute``: ``with InputNode() as inp``. ``inp[0]`` and ``inp.x`` (or ``inp["x"]``) are one argument each."""

    def __init__(self, *args, **kwargs):
        if args or kwargs:
            raise ValueError("InputNode takes no arguments: execute() passes the values")
        super().__init__()
        self._parts: dict[int | str, InputAttributeNode] = {}

    def __enter__(self) -> InputNode:
        return self

    def __exit__(self, *_) -> None:
        pass

    def __getattr__(self, name: str) -> InputAttributeNode:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._part(name, getattr)

    def __getitem__(self, key: int | str) -> InputAttributeNode:
        if isinstance(key, bool) or not (isinstance(key, str) or hasattr(key, "__index__")):
            raise ValueError(f"an input is indexed by position (int) or keyword (str), not {key!r}")
        key = key if isinstance(key, str) else whole("the position of an input", key)
        return self._part(key, lambda value, k: value[k])

    def _part(self, key: int | str, of_one: Callable[[Any, Any], Any]) -> InputAttributeNode:
        if key not in self._parts:
            self._parts[key] = InputAttributeNode(self, key, of_one)
        return self._parts[key]

    def _make(self, resolved, args: tuple, kwargs: dict[str, Any]) -> Any:
        return args[0] if len(args) == 1 and not kwargs else (args, kwargs)

    def __repr__(self) -> str:
        return "InputNode"


class InputAttributeNode(DAGNode):
    """One argument of ``execute``; in an uncompiled graph with a single argument, a part of it."""

    def __init__(self, whole: InputNode, key: int | str, of_one: Callable[[Any, Any], Any]):
        self._key, self._of_one = key, of_one
        super().__init__((whole,))

    def _make(self, resolved, args: tuple, kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and not kwargs and (self._key != 0 or isinstance(args[0], (list, tuple, dict))):
            return self._of_one(args[0], self._key)
        return args[self._key] if isinstance(self._key, int) else kwargs[self._key]

    def __repr__(self) -> str:
        return f"InputNode[{self._key!r}]"


class ClassMethodNode(DAGNode):
    """``actor.method.bind(...)``"""

    def __init__(self, method, args: tuple, kwargs: dict[str, Any]):
        self._method = method
        super().__init__(args, kwargs)

    def _make(self, resolved, args: tuple, kwargs: dict[str, Any]) -> ObjectRef:
        return self._method.remote(*resolved(self._args), **resolved(self._kwargs))

    def __repr__(self) -> str:
        return f"{self._method._actor.class_name}.{self._method._name}"


class FunctionNode(DAGNode):
    """``function.bind(...)``"""

    def __init__(self, function, args: tuple, kwargs: dict[str, Any]):
        self._function = function
        super().__init__(args, kwargs)

    def _make(self, resolved, args: tuple, kwargs: dict[str, Any]) -> ObjectRef:
        return self._function.remote(*resolved(self._args), **resolved(self._kwargs))

    def __repr__(self) -> str:
        return self._function.__name__


class MultiOutputNode(DAGNode):
    """Several results of one graph. ``execute`` returns a list of references in this order."""

    def __init__(self, outputs: list[DAGNode] | tuple[DAGNode, ...]):
        if not isinstance(outputs, (list, tuple)) or not outputs or not all(isinstance(o, DAGNode) for o in outputs):
            raise ValueError("MultiOutputNode takes a list of nodes that is not empty")
        super().__init__(tuple(outputs))

    def _make(self, resolved, args: tuple, kwargs: dict[str, Any]) -> list:
        return list(resolved(self._args))

    def __repr__(self) -> str:
        return "MultiOutputNode"


def nodes_in(value: Any) -> Iterator[DAGNode]:
    if isinstance(value, DAGNode):
        yield value
    elif type(value) in (list, tuple):
        for v in value:
            yield from nodes_in(v)
    elif type(value) is dict:
        for v in value.values():
            yield from nodes_in(v)


def replaced(value: Any, by: Callable[[DAGNode], Any]) -> Any:
    """Returns the value with replaced nodes. A value without nodes is returned unchanged."""
    if isinstance(value, DAGNode):
        return by(value)
    if type(value) in (list, tuple):
        out = type(value)(replaced(v, by) for v in value)
    elif type(value) is dict:
        out = {k: replaced(v, by) for k, v in value.items()}
    else:
        return value
    return out if next(nodes_in(value), None) is not None else value
