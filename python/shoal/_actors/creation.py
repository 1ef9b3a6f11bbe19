"""``remote``: makes actors from classes, and tasks from functions."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import site
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any

from shoal import _native
from shoal._actors.handle import ActorHandle, _pack, actor_ownership, in_any_order, own
from shoal._actors.options import (
    ACTOR_OPTIONS,
    FUNCTION_OPTIONS,
    check_actor_options,
    check_call_options,
    concurrency_of,
    is_async,
    meant,
    methods_of,
    with_retries,
)
from shoal._actors.placement import where
from shoal._core import serialize
from shoal._core.process import _package_path, state
from shoal._core.process import session as _session
from shoal._core.signature import Signature, of_callable
from shoal._driver.client import get, put
from shoal._objects.refs import ObjectRef, when_ready
from shoal._objects.streams import ObjectRefGenerator
from shoal._runtime_env import environment
from shoal.exceptions import InvalidArgument, Unimplemented

__all__ = [
    "ActorClass",
    "ActorClassInheritanceException",
    "ActorHandle",
    "RemoteFunction",
    "create_gang",
    "get_actor",
    "list_named_actors",
    "remote",
]

_OPTIONS = {"num_cpus", "num_gpus", "memory", "resources", "accelerator_type"}
_KNOWN = _OPTIONS | ACTOR_OPTIONS | FUNCTION_OPTIONS
_ENDS_S, _AGAIN_S = 5.0, 0.002  # limit for the head to learn of a death after this process, and pause between queries
_MAX_BIRTH_BYTES = 1 << 19  # same as in actors/cluster/cluster.h


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _KNOWN:
            raise ValueError(f"unknown option {name}; {meant(name, _KNOWN)}")
    if not isinstance(options.get("resources") or {}, dict):
        raise TypeError(f"resources is a dict of amounts by name, not {type(options['resources']).__name__}")
    for name in ("CPU", "GPU", "memory", "object_store_memory"):
        if name in (options.get("resources") or {}):
            own = {"CPU": "num_cpus=", "GPU": "num_gpus=", "memory": "memory="}.get(name)
            raise ValueError(f"resources has no {name!r}: " + (f"say {own}" if own else "it is the node's own, and nobody reserves of it"))
    gpus, accelerator = options.get("num_gpus") or 0, options.get("accelerator_type")
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"num_gpus is a whole number or below 1 (a share of one device), not {gpus}")
    if accelerator is not None and (not isinstance(accelerator, str) or not accelerator):
        raise TypeError(f"accelerator_type is a str that is not empty, not {accelerator!r}")
    return options


_ACCELERATOR_SHARE = 0.001  # share of a node's one unit, so that any number of actors fits


def _resources(options: dict[str, Any], default_cpus: float) -> dict[str, float]:
    out = {"CPU": float(options.get("num_cpus", default_cpus) or 0), "GPU": float(options.get("num_gpus") or 0)}
    out["memory"] = float(options.get("memory") or 0)
    out.update({k: float(v) for k, v in (options.get("resources") or {}).items()})
    if options.get("accelerator_type"):
        out[f"accelerator_type:{options['accelerator_type']}"] = _ACCELERATOR_SHARE
    return {k: v for k, v in out.items() if v != 0 or k == "CPU"}


def _logging() -> dict[str, str]:
    if state.logging is None:
        return {}
    from shoal._core.logging import to_environment

    return to_environment(state.logging)


@cache
def interpreters_paths() -> frozenset[str]:
    """The folders of the standard library and of site-packages. The first call reads files; a zygote makes it before it forks workers."""
    own = *sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_config_var("DESTSHARED")
    return frozenset(own)


def launch(
    cpus: float = 0, *, torch: bool = False, env: dict[str, str] | None = None, runtime_env: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the start parameters of a worker of this driver: same interpreter, import path and folder, unless ``runtime_env`` differs. By
    default it computes with as many threads as it has CPUs."""
    around = environment.prepare(environment.merged(environment.inherited(), runtime_env or {}))
    # Like Python, ignores entries of sys.path that are no str, and archives that do not exist.
    there = [p for p in sys.path if isinstance(p, str) and (not p.endswith(".zip") or os.path.exists(p))]
    path = [os.path.abspath(p) if p else os.getcwd() for p in there]
    # The script's folder comes first, unless Python left it out: the main module of `python -m package.main` is no script.
    scripts = {os.path.dirname(way(sys.argv[0])) for way in (os.path.abspath, os.path.realpath)} if sys.argv else set()
    script = [p for p in path if p in scripts][:1]
    # The worker has its own standard library and site-packages: only added entries matter.
    added = [p for p in path if p not in interpreters_paths()]
    ours = _package_path().split(os.pathsep)
    threads = {"OMP_NUM_THREADS": str(int(cpus))} if cpus >= 2 else {}
    return {
        "program": sys.executable,
        "torch": torch,
        "cwd": around.get("cwd") or os.getcwd(),
        "env": list({**threads, **around.get("env", {}), "SHOAL_NAMESPACE": state.namespace, **_logging(), **(env or {})}.items()),
        "python_path": list(dict.fromkeys(around.get("python_path", []) + script + ours + added)),
    }


def create_gang(
    cls: type,
    count: int,
    args=(),
    kwargs=None,
    *,
    resources: dict[str, float],
    torch: bool = False,
    refuse_infeasible: bool = False,
    env: dict[str, str] | None = None,
    name: str = "",
    options: dict[str, Any] | None = None,
    placed: dict[str, Any] | None = None,
    runtime_env: dict[str, Any] | None = None,
) -> list[ActorHandle]:
    """Creates ``count`` actors of one class with the same arguments, all or none, in order of rank. ``name`` is for display (default: the
    class's). ``options``: those in ACTOR_OPTIONS. ``placed``: the request from ``_placement.where``."""
    name, options = name or cls.__name__, options or {}
    session = _session()
    methods = with_retries(methods_of(cls), options.get("max_task_retries"))
    # Packed first, so that unpicklable arguments leave no actors behind.
    packed = _pack_creation(cls, name, methods, args, kwargs or {}, resources, options)
    how = launch(resources.get("CPU", 0), torch=torch, env=env, runtime_env=runtime_env)
    ids = session.create_gang(name, count, resources, how, refuse_infeasible, placed or {})
    limit = options.get("max_pending_calls", -1)
    try:
        handles = [ActorHandle(i, name, methods, ObjectRef(session.call(i, "__init__", *packed), name), limit) for i in ids]
    except BaseException:
        for i in ids:
            with contextlib.suppress(Exception):
                session.kill(i)
        raise
    for handle in handles if packed[2] else ():
        _begins(session, handle, packed[2])
    return handles


def _pack_creation(cls: type, class_name: str, methods: dict, args, kwargs: dict, resources: dict[str, float], options: dict[str, Any]):
    """Packs the call that makes an actor: its class, its worker's settings, and the arguments."""
    return _pack((serialize.Code(cls), _settings(cls, class_name, methods, resources, options), *args), kwargs, ours=2)


def _settings(cls: type, class_name: str, methods: dict, resources: dict[str, float], options: dict[str, Any]) -> dict[str, Any]:
    session = _session()
    return {
        "class_name": class_name,
        "creator": (session.worker, session.node),
        "name": options.get("name", ""),
        "max_pending_calls": options.get("max_pending_calls", -1),
        "max_task_retries": options.get("max_task_retries"),
        "resources": {k: v for k, v in resources.items() if v},
        "restarts": bool(options.get("max_restarts")),
        "concurrency": concurrency_of(cls, options, methods),
    }


def _begins(session: _native.Session, handle: ActorHandle, arguments: list[_native.Ref]) -> None:
    actor_id = handle._shoal_actor.id
    when_ready(handle._shoal_actor.created, lambda: _end_unmade(session, actor_id, arguments))


def _end_unmade(session: _native.Session, actor_id: str, arguments: list[_native.Ref]) -> None:
    """Ends an actor whose arguments have failed: it is never made."""
    if any(a.ready and a.failed for a in arguments):
        with contextlib.suppress(Exception):  # the session is closed, and the actor ended with it
            session.kill(actor_id)


def _creation_spec(cls: type, settings: dict[str, Any], args: tuple, kwargs: dict) -> tuple[bytes, list[_native.Ref]]:
    """Packs the class, settings and arguments for restarts of an actor, with the references in them. Reference arguments stay references; a
    large argument or class becomes one."""

    code = serialize.Code(cls)

    def packed() -> tuple[bytes, list[_native.Ref]]:
        head, buffers, refs = serialize.pack((code, settings, args, kwargs))
        return pickle.dumps((bytes(head), [bytes(b) for b in buffers])), refs

    out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        args = tuple(a if isinstance(a, ObjectRef) else put(a) for a in args)
        kwargs = {k: a if isinstance(a, ObjectRef) else put(a) for k, a in kwargs.items()}
        out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        code = put(code)
        out, refs = packed()
    if len(out) > _MAX_BIRTH_BYTES:
        raise InvalidArgument(
            f"the actor {cls.__name__} travels as {len(out)} bytes; one that is started again may have {_MAX_BIRTH_BYTES}",
            hint="pass fewer arguments, for example one list of them",
        )
    return out, refs


def from_creation_spec(creation_spec: bytes) -> tuple[type, dict[str, Any], tuple, dict]:
    """Returns (class, settings, args, kwargs)."""
    cls, settings, args, kwargs = serialize.loads(*pickle.loads(creation_spec))

    def value(a):
        return get(a) if isinstance(a, ObjectRef) else a

    return value(cls), settings, tuple(value(a) for a in args), {k: value(a) for k, a in kwargs.items()}


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Returns the living actor of this name. ValueError (ActorNotFound) if the namespace (default: this job's) has none."""
    if not isinstance(name, str) or not name:
        raise (TypeError if name else ValueError)(f"the name of an actor is a str that is not empty, not {name!r}")
    session = _session()
    return _living(partial(session.find_actor, name, namespace or state.namespace), actor_ownership.is_alive)


def _living(find: Callable[[], bytes | None], lives: Callable[[ActorHandle], bool] = actor_ownership.keep_on) -> ActorHandle | None:
    """Returns the actor that the head has by a name. It asks again while the head has not yet learnt of a death that this process has
    seen."""
    until = time.monotonic() + _ENDS_S
    while (found := find()) is not None:
        handle = serialize.loads(found, [])
        if lives(handle) or time.monotonic() > until:
            return handle
        time.sleep(_AGAIN_S)
    return None


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Names of living actors in this job's namespace, or dicts of name and namespace for all namespaces."""
    named = [r for r in _session().list("actors") if r["name"] and r["state"] != "DEAD"]
    if all_namespaces:
        return [{"name": r["name"], "namespace": r["namespace"]} for r in named]
    return [r["name"] for r in named if r["namespace"] == state.namespace]


class ActorClassInheritanceException(TypeError):
    """Raised when a class derives from one that is decorated with ``remote``."""


class ActorClass:
    """A class decorated with ``remote``."""

    def __init__(self, cls: type, options: dict[str, Any]):
        self._shoal_cls, self._shoal_options = cls, self._shoal_checked(options)
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def __ray_actor_class__(self) -> type:
        """The decorated class."""
        return self._shoal_cls

    def __getattr__(self, name: str):
        """Returns the attribute of the class itself."""
        if name.startswith("__") or "_shoal_cls" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._shoal_cls, name)

    # Computed on first use: a class that refers to itself is still empty while it is unpickled.
    @cached_property
    def _shoal_methods(self) -> dict[str, dict[str, Any]]:
        return methods_of(self._shoal_cls)

    @cached_property
    def _shoal_takes(self) -> Signature | None:
        return of_callable(self._shoal_cls)

    @cached_property
    def _shoal_is_async(self) -> bool:
        return is_async(self._shoal_cls)

    def _shoal_takes_any_order(self, options: dict[str, Any]) -> bool:
        """True if a call that waits for its arguments may be overtaken. Calls of a concurrent actor have no order to keep."""
        chosen, concurrent = options.get("allow_out_of_order_execution"), self._shoal_is_async or (options.get("max_concurrency") or 1) > 1
        if concurrent and chosen is False:
            raise ValueError("allow_out_of_order_execution=False: calls of an async actor, or with max_concurrency above 1, have no order")
        return concurrent if chosen is None else chosen

    def __mro_entries__(self, bases):
        raise ActorClassInheritanceException(f"no class derives from the actor {self.__name__}: derive from the class, then decorate")

    @staticmethod
    def _shoal_checked(options: dict[str, Any]) -> dict[str, Any]:
        options = check_call_options(options, "actors", _OPTIONS)
        check_actor_options(options)
        return options

    def options(self, /, **options) -> ActorClass:
        other = object.__new__(ActorClass)  # keeps the cached properties
        other.__dict__.update(self.__dict__, _shoal_options=self._shoal_checked({**self._shoal_options, **_check_options(options)}))
        return other

    def remote(self, /, *args, **kwargs) -> ActorHandle:
        """Creates an actor. ``name``: other processes find it with ``get_actor``. ``lifetime="detached"``: it outlives its job, and only
        ``shoal logs NAME`` shows its output. ``max_restarts``: its process is restarted after an unrequested end, including ``sys.exit``
        with a code other than 0.

        Other actors end when no counted handle (see ``ActorHandle``) is left in any process, after the calls made on them. An actor also
        ends with the process of the actor that created it, even if that is restarted. An actor created by a remote function ends if the
        function's worker dies, but not if the worker is used up (``max_calls``) or idle.
        """
        if self._shoal_takes is not None:
            self._shoal_takes.check(self.__name__, args, kwargs)
        options = {k: v for k, v in self._shoal_options.items() if v is not None}
        resources, (placed, env) = _resources(options, 0), where(options, self.__name__)
        if not (options.get("name") or options.get("max_restarts") or options.get("lifetime") == "detached"):
            around = {"placed": placed, "env": env, "runtime_env": options.get("runtime_env")}
            any_order = self._shoal_takes_any_order(options)
            handle = own(create_gang(self._shoal_cls, 1, args, kwargs, resources=resources, options=options, **around)[0])
            return in_any_order(handle) if any_order else handle
        session, name, restarts = _session(), self.__name__, options.get("max_restarts", 0)
        detached = options.get("lifetime") == "detached"
        settings = _settings(self._shoal_cls, name, self._shoal_methods, resources, options)
        # A detached actor is made from its creation spec, as its creator may be gone by then. The call only reports completion.
        packed = _pack((), {}) if detached else _pack((serialize.Code(self._shoal_cls), settings, *args), kwargs, ours=2)
        limit = options.get("max_pending_calls", -1)
        handle = ActorHandle(
            session.new_actor_id(), name, with_retries(self._shoal_methods, options.get("max_task_retries")), max_pending=limit
        )
        handle._shoal_actor.any_order = self._shoal_takes_any_order(options)
        env = {**env, "SHOAL_SELF_MADE": "1"} if detached else env
        creation_spec, kept = _creation_spec(self._shoal_cls, settings, args, kwargs) if restarts or detached else (b"", [])
        for ref in kept if detached else ():  # kept for good: no process learns of the actor's end
            session.pin(ref)
        create = partial(
            session.create_actor,
            handle._shoal_actor.id,
            name,
            resources,
            launch(resources["CPU"], env=env, runtime_env=options.get("runtime_env")),
            name=options.get("name") or "",
            name_space=options.get("namespace") or state.namespace,
            handle=serialize.dumps(handle)[0],
            get_if_exists=options.get("get_if_exists", False),
            detached=detached,
            where=placed,
            max_restarts=restarts,
            max_task_retries=options.get("max_task_retries", 0),
            creation_spec=creation_spec,
        )
        if (found := _living(create)) is not None:
            return found
        if detached and state.shows_logs and not state.notified_of_detached:
            state.notified_of_detached = True
            called = options.get("name") or name
            print(f"shoal: what detached actors print is not shown here; to read it: shoal logs {called}", file=sys.stderr)
        try:
            handle._shoal_actor.created = ObjectRef(session.call(handle._shoal_actor.id, "__init__", *packed), name)
        except BaseException:
            with contextlib.suppress(Exception):
                session.kill(handle._shoal_actor.id)
            raise
        if packed[2]:
            _begins(session, handle, packed[2])
        if handle._shoal_actor.any_order:
            in_any_order(handle)
        return handle if detached else own(handle, bool(restarts), kept)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options) -> ActorHandle:
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        return self.options(**options).remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        raise Unimplemented("graphs are of actors that are there", hint=f"make one with {self.__name__}.remote() and bind its methods")

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"make an actor with {self.__name__}.remote(...)")

    def __reduce__(self):
        return ActorClass, (self._shoal_cls, self._shoal_options)


class RemoteFunction:
    """A function decorated with ``remote``.

    Its copies, also those by ``options``, share its identity. Workers cache functions by identity, because two functions of one factory
    have equal pickles but separate closures.
    """

    def __init__(self, function, options: dict[str, Any], identity: bytes = b""):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ValueError(
                f"'async def' should not be used for remote tasks ({getattr(function, '__qualname__', function)}): "
                "write an ordinary function that calls asyncio.run() with it, or an actor with async methods"
            )
        if not hasattr(function, "__name__"):
            raise TypeError(f"a remote function is a function, not {function!r}: write one that calls it")
        options = check_call_options(options, "remote functions", _OPTIONS)
        self._function, self._options, self._known = function, options, None  # _known: its registration with the session
        self._identity = identity or os.urandom(serialize.IDENTITY_BYTES)
        self._sent: list = []  # at most one element; shared with copies by options()
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @cached_property
    def _takes(self) -> Signature | None:
        return of_callable(self._function)

    def options(self, /, **options) -> RemoteFunction:
        options = {**self._options, **_check_options(options)}
        options = check_call_options(options, "remote functions", _OPTIONS)
        self._takes  # noqa: B018 computed once, for the copies as well
        other = object.__new__(RemoteFunction)
        other.__dict__.update(self.__dict__, _options=options, _known=None)
        return other

    def remote(self, /, *args, **kwargs) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        if (takes := self._takes) is not None and (kwargs or not takes.least <= len(args) <= takes.most):
            takes.check(self.__name__, args, kwargs)
        session, function = _session(), self._known
        if function is None or function.session is not session:
            function = self._known = self._know()
        return state.functions.submit(function, args, kwargs)

    def _remote(self, /, args: Sequence | None = None, kwargs: dict[str, Any] | None = None, **options):
        """Ray's other way to write ``options(**options).remote(*args, **kwargs)``."""
        called = self.options(**options) if options else self
        return called.remote(*(args or ()), **(kwargs or {}))

    def bind(self, /, *args, **kwargs):
        """Returns a call that is not made yet: a node of a graph (``shoal.dag``) that is executed without compilation."""
        from shoal.dag._nodes import FunctionNode

        return FunctionNode(self, args, kwargs)

    def _know(self):
        from shoal._tasks.pool import Function, FunctionPool, Sent  # a late import, because its workers are actors

        if state.functions is None:
            state.functions = FunctionPool()
        options = {k: v for k, v in self._options.items() if v is not None}
        if "num_returns" not in options and inspect.isgeneratorfunction(self._function):
            options["num_returns"] = "streaming"
        name = options.get("name") or self.__name__
        if not self._sent or self._sent[0].session is not _session():
            self._sent[:] = [Sent(self._function, name, self._identity)]
        return Function(self._sent[0], name, _resources(options, 1), options)

    def __call__(self, /, *args, **kwargs):
        raise TypeError(f"call {self.__name__}.remote(...), or the plain function")

    def __reduce__(self):
        return RemoteFunction, (self._function, self._options, self._identity)


def remote(*args, **options):
    """Decorator: ``@remote`` or ``@remote(num_cpus=1, num_gpus=0, memory=bytes, resources={...})`` on a class or a function.

    Both take ``scheduling_strategy`` and ``label_selector``. A task requests one CPU by default, an actor none. The actor is placed on
    this node while that has fewer processes than CPUs, otherwise on the node with the fewest.

    An actor takes ``max_concurrency`` (threads, or concurrent calls of a class with ``async def`` methods, 1000 by default),
    ``concurrency_groups`` (further limits, by name), ``max_pending_calls``, ``name``, ``namespace``, ``get_if_exists``, ``lifetime``,
    ``max_restarts`` and ``max_task_retries``.

    A function takes ``num_returns``, ``max_retries``, ``retry_exceptions``, ``max_calls`` (of one process) and ``name``. ``max_retries``
    (3; -1: unlimited) counts repetitions after its process died, also for lack of memory (then OutOfMemoryError).
    """
    if len(args) == 1 and not options and callable(args[0]):
        target = args[0]
        return ActorClass(target, {}) if inspect.isclass(target) else RemoteFunction(target, {})
    if args:
        raise TypeError("remote() takes keyword options only")
    _check_options(options)
    return lambda target: ActorClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)
