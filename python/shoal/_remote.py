"""``remote``: classes become actors, functions become tasks."""

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

from shoal import _environment, _native, _serialize
from shoal._client import get, put
from shoal._handle import ActorHandle, _pack, in_any_order, made_here, own
from shoal._options import (
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
from shoal._placement import where
from shoal._refs import ObjectRef, when_ready
from shoal._runtime import _package_path, state
from shoal._runtime import session as _session
from shoal._signature import Signature, of_callable
from shoal._stream import ObjectRefGenerator
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
_ENDS_S, _AGAIN_S = 5.0, 0.002  # for the head to hear of an end of which this process has, and how often it is asked
_MAX_BIRTH_BYTES = 1 << 19  # of actors/cluster/cluster.h


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


_ACCELERATOR_SHARE = 0.001  # of a node's one: any number of actors may ask for its type


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
    from shoal._logging import to_environment

    return to_environment(state.logging)


@cache
def interpreters_paths() -> frozenset[str]:
    """The folders of the standard library and of site-packages. The first call reads files; a zygote makes it for its workers."""
    own = *sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_config_var("DESTSHARED")
    return frozenset(own)


def launch(
    cpus: float = 0, *, torch: bool = False, env: dict[str, str] | None = None, runtime_env: dict[str, Any] | None = None
) -> dict[str, Any]:
    """How a worker of this driver is started: same interpreter, same import path, same folder, but for what ``runtime_env`` says. It
    computes with as many threads as it has CPUs, unless that says otherwise."""
    around = _environment.prepare(_environment.merged(_environment.inherited(), runtime_env or {}))
    # As Python itself reads sys.path: other entries than str count for nothing, nor does an archive that is not there.
    there = [p for p in sys.path if isinstance(p, str) and (not p.endswith(".zip") or os.path.exists(p))]
    path = [os.path.abspath(p) if p else os.getcwd() for p in there]
    # First comes the script's folder, unless Python left that out: the main module of `python -m package.main` is no script.
    scripts = {os.path.dirname(way(sys.argv[0])) for way in (os.path.abspath, os.path.realpath)} if sys.argv else set()
    script = [p for p in path if p in scripts][:1]
    # Its own standard library and site-packages are the worker's, too: only what was added matters.
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
    """``count`` actors of one class, placed together or not at all, by rank. Each is constructed with the same arguments.
    ``name`` is what people read (default: the class's); ``options``: the actors' own (ACTOR_OPTIONS); ``placed``: where they
    may go (of ``_placement.where``)."""
    name, options = name or cls.__name__, options or {}
    session = _session()
    methods = with_retries(methods_of(cls), options.get("max_task_retries"))
    # Packed first: arguments that cannot travel shall not leave actors behind.
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
    """The call that makes an actor: its class, what its worker has to know of it, and the arguments."""
    return _pack((_serialize.Code(cls), _settings(cls, class_name, methods, resources, options), *args), kwargs, ours=2)


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
    """An actor whose arguments have failed is never made: it ends."""
    if any(a.ready and a.failed for a in arguments):
        with contextlib.suppress(Exception):  # the session is closed, and the actor gone with it
            session.kill(actor_id)


def _birth(cls: type, settings: dict[str, Any], args: tuple, kwargs: dict) -> tuple[bytes, list[_native.Ref]]:
    """Packs what an actor is made from when it is started again, with the references in it. References among its arguments stay so, and
    large arguments become some, as does a large class."""

    code = _serialize.Code(cls)

    def packed() -> tuple[bytes, list[_native.Ref]]:
        head, buffers, refs = _serialize.pack((code, settings, args, kwargs))
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


def from_birth(birth: bytes) -> tuple[type, dict[str, Any], tuple, dict]:
    """(class, settings, args, kwargs)"""
    cls, settings, args, kwargs = _serialize.loads(*pickle.loads(birth))

    def value(a):
        return get(a) if isinstance(a, ObjectRef) else a

    return value(cls), settings, tuple(value(a) for a in args), {k: value(a) for k, a in kwargs.items()}


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The living actor of this name. ValueError (ActorNotFound) when there is none in the namespace (default: this job's)."""
    if not isinstance(name, str) or not name:
        raise (TypeError if name else ValueError)(f"the name of an actor is a str that is not empty, not {name!r}")
    session = _session()
    return _living(partial(session.find_actor, name, namespace or state.namespace), made_here.is_alive)


def _living(find: Callable[[], bytes | None], lives: Callable[[ActorHandle], bool] = made_here.keep_on) -> ActorHandle | None:
    """The actor that the head has by a name, asked again while it has one whose end this process has heard of, and the head not yet."""
    until = time.monotonic() + _ENDS_S
    while (found := find()) is not None:
        handle = _serialize.loads(found, [])
        if lives(handle) or time.monotonic() > until:
            return handle
        time.sleep(_AGAIN_S)
    return None


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Names of living actors in this job's namespace, or ``{"name", "namespace"}`` of all there are."""
    named = [r for r in _session().list("actors") if r["name"] and r["state"] != "DEAD"]
    if all_namespaces:
        return [{"name": r["name"], "namespace": r["namespace"]} for r in named]
    return [r["name"] for r in named if r["namespace"] == state.namespace]


class ActorClassInheritanceException(TypeError):
    """A class was to be derived from one that was decorated with ``remote``."""


class ActorClass:
    """A class decorated with ``remote``."""

    def __init__(self, cls: type, options: dict[str, Any]):
        self._shoal_cls, self._shoal_options = cls, self._shoal_checked(options)
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__

    __class_getitem__ = classmethod(types.GenericAlias)

    @property
    def __ray_actor_class__(self) -> type:
        """The class that was decorated."""
        return self._shoal_cls

    def __getattr__(self, name: str):
        """Returns the attribute of the class itself."""
        if name.startswith("__") or "_shoal_cls" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._shoal_cls, name)

    # Not before they are used: while a class that refers to itself is unpickled it is still empty.
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
        """Whether a call that waits for its arguments holds up nobody behind it: calls of several threads or coroutines have no order that
        they could lose."""
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
        other = object.__new__(ActorClass)  # what is known of the class stays
        other.__dict__.update(self.__dict__, _shoal_options=self._shoal_checked({**self._shoal_options, **_check_options(options)}))
        return other

    def remote(self, /, *args, **kwargs) -> ActorHandle:
        """An actor. With ``name`` others find it (``get_actor``); ``lifetime="detached"``: it outlives its job, and what it prints is
        shown by ``shoal logs NAME`` alone; ``max_restarts``: its process is started again when it ends unasked, by ``sys.exit`` with
        another code than 0, too.

        Unless it is detached, an actor ends when no handle of it is left, in whatever process, after the calls that were made on it (see
        ``ActorHandle``; handles that ``get_actor`` and ``get_if_exists`` find keep nobody). Before that an actor that an actor made ends
        with that one's process, also when that is started again; one that a remote function made, when the worker that ran it dies, but
        not when that is merely used up (``max_calls``) or idle.
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
        # A detached one makes itself, from its birth: who asked for it may be gone before it has a process. The call only tells when.
        packed = _pack((), {}) if detached else _pack((_serialize.Code(self._shoal_cls), settings, *args), kwargs, ours=2)
        limit = options.get("max_pending_calls", -1)
        handle = ActorHandle(
            session.new_actor_id(), name, with_retries(self._shoal_methods, options.get("max_task_retries")), max_pending=limit
        )
        handle._shoal_actor.any_order = self._shoal_takes_any_order(options)
        env = {**env, "SHOAL_SELF_MADE": "1"} if detached else env
        birth, kept = _birth(self._shoal_cls, settings, args, kwargs) if restarts or detached else (b"", [])
        for ref in kept if detached else ():  # its end is nobody's to hear of
            session.pin(ref)
        create = partial(
            session.create_actor,
            handle._shoal_actor.id,
            name,
            resources,
            launch(resources["CPU"], env=env, runtime_env=options.get("runtime_env")),
            name=options.get("name") or "",
            name_space=options.get("namespace") or state.namespace,
            handle=_serialize.dumps(handle)[0],
            get_if_exists=options.get("get_if_exists", False),
            detached=detached,
            where=placed,
            max_restarts=restarts,
            max_task_retries=options.get("max_task_retries", 0),
            birth=birth,
        )
        if (found := _living(create)) is not None:
            return found
        if detached and state.shows_logs and not state.told_of_detached:
            state.told_of_detached = True
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

    Each has an identity, which its copies and what ``options`` makes of it share: a worker keeps one function for each identity, since
    two functions of one factory are alike as pickles and yet have closures of their own.
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
        self._function, self._options, self._known = function, options, None  # known: to the session
        self._identity = identity or os.urandom(_serialize.IDENTITY_BYTES)
        self._sent: list = []  # one at most; what options() makes of this has the same list
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    @cached_property
    def _takes(self) -> Signature | None:
        return of_callable(self._function)

    def options(self, /, **options) -> RemoteFunction:
        options = {**self._options, **_check_options(options)}
        options = check_call_options(options, "remote functions", _OPTIONS)
        self._takes  # noqa: B018 which the other need not find out, too
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
        """A call that is not made yet: a node of a graph (``shoal.dag``) that is executed as it is."""
        from shoal.dag._nodes import FunctionNode

        return FunctionNode(self, args, kwargs)

    def _know(self):
        from shoal._tasks import Function, FunctionPool, Sent  # after this module: its workers are actors

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

    An actor asks for no CPU unless told so, and goes to a node that has some: this one, or where few are; a task asks for one. Both take
    ``scheduling_strategy`` and ``label_selector``. An actor also takes ``max_concurrency`` (threads; calls at once of a class with ``async
    def`` methods, 1000 by default), ``concurrency_groups`` (more of these, by name), ``max_pending_calls``, ``name``, ``namespace``,
    ``get_if_exists``, ``lifetime``, ``max_restarts`` and ``max_task_retries``; a function ``num_returns``, ``max_retries`` (3; -1: any
    number) after deaths of its process, those for want of memory among them (then OutOfMemoryError), ``retry_exceptions``, ``max_calls``
    of one process and ``name``.
    """
    if len(args) == 1 and not options and callable(args[0]):
        target = args[0]
        return ActorClass(target, {}) if inspect.isclass(target) else RemoteFunction(target, {})
    if args:
        raise TypeError("remote() takes keyword options only")
    _check_options(options)
    return lambda target: ActorClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)
