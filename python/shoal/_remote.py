"""``remote``: classes become actors, functions become tasks."""

from __future__ import annotations

import contextlib
import inspect
import os
import site
import sys
import sysconfig
from typing import Any

from shoal import _native, _serialize
from shoal._options import ACTOR_OPTIONS, BUILT_IN, FUNCTION_OPTIONS, METHOD_OPTIONS, check_call_options, concurrency_of, methods_of
from shoal._refs import ObjectRef, new_object_id, when_ready
from shoal._retry import MethodAttempts, Retries
from shoal._runtime import _package_path, state
from shoal._runtime import session as _session
from shoal._stream import ObjectRefGenerator
from shoal.exceptions import PendingCallsLimitExceeded, Unimplemented

__all__ = ["ActorClass", "ActorHandle", "RemoteFunction", "create_gang", "remote"]

_OPTIONS = {"num_cpus", "num_gpus", "memory", "resources"}
_CALL_OPTIONS = ACTOR_OPTIONS | FUNCTION_OPTIONS
_RAYS_OTHERS = {
    "namespace", "lifetime", "get_if_exists", "max_restarts", "max_task_retries", "scheduling_strategy", "runtime_env",
    "label_selector", "accelerator_type", "placement_group",
}  # fmt: skip


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name in _RAYS_OTHERS:
            raise Unimplemented(f"the option {name} of shoal.remote is not in this release", hint=f"use {', '.join(sorted(_OPTIONS))}")
        if name not in _OPTIONS | _CALL_OPTIONS:
            raise TypeError(f"unknown option {name}; there are {', '.join(sorted(_OPTIONS))}")
    if not isinstance(options.get("resources") or {}, dict):
        raise TypeError(f"resources is a dict of amounts by name, not {type(options['resources']).__name__}")
    return options


def _resources(options: dict[str, Any], default_cpus: float) -> dict[str, float]:
    out = {"CPU": float(options.get("num_cpus", default_cpus) or 0), "GPU": float(options.get("num_gpus") or 0)}
    out["memory"] = float(options.get("memory") or 0)
    out.update({k: float(v) for k, v in (options.get("resources") or {}).items()})
    return {k: v for k, v in out.items() if v != 0 or k == "CPU"}


def launch(*, torch: bool = False, env: dict[str, str] | None = None) -> dict[str, Any]:
    """How a worker of this driver is started: same interpreter, same import path, same folder."""
    script = [os.path.dirname(os.path.abspath(sys.argv[0]))] if sys.argv and os.path.exists(sys.argv[0]) else []
    path = [os.path.abspath(p) if p else os.getcwd() for p in sys.path if not p.endswith(".zip")]
    # Its own standard library and site-packages are the worker's, too: only what was added matters.
    own = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages(), sysconfig.get_config_var("DESTSHARED")}
    added = [p for p in path if p not in own]
    ours = _package_path().split(os.pathsep)
    return {
        "program": sys.executable,
        "torch": torch,
        "cwd": os.getcwd(),
        "env": list((env or {}).items()),
        "python_path": list(dict.fromkeys(script + ours + added)),
    }


class _Dep:
    """Stands in a pickled call for the k-th argument that was a reference."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return _Dep, (self.k,)


def _pack(args: tuple, kwargs: dict, extra: dict[str, Any] | None = None) -> tuple[bytes, list[memoryview], list[_native.Ref]]:
    """``extra``: what the worker has to know of a call that is not like most (num_returns, group, name)."""
    deps: list[_native.Ref] = []
    if any(type(a) is ObjectRef for a in args) or any(type(a) is ObjectRef for a in kwargs.values()):

        def replaced(a):
            if type(a) is not ObjectRef:
                return a
            deps.append(a._ref)
            return _Dep(len(deps) - 1)

        args = tuple(replaced(a) for a in args)
        kwargs = {k: replaced(a) for k, a in kwargs.items()}
    return (*_serialize.dumps((args, kwargs, extra) if extra else (args, kwargs)), deps)


def _call(actor_id: str, method: str, where: str, args: tuple, kwargs: dict) -> ObjectRef:
    return ObjectRef(_session().call(actor_id, method, *_pack(args, kwargs)), where)


def extra_of(options: dict[str, Any]) -> dict[str, Any]:
    extra = {k: options[k] for k in ("num_returns", "concurrency_group", "name") if k in options and (k, options[k]) != ("num_returns", 1)}
    if extra.get("num_returns") == "streaming":
        extra["stream"] = new_object_id()
    return extra


def results(ref: _native.Ref, extra: dict[str, Any], where: str) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
    """What ``.remote()`` returns: one reference, a list of them, one that grows, or nothing."""
    num_returns = extra.get("num_returns", 1)
    if num_returns == 1:
        return ObjectRef(ref, where)
    if num_returns == "streaming":
        return ObjectRefGenerator(ObjectRef(ref, where), extra["stream"], where)
    return [ObjectRef(r, where) for r in ref.split(_session(), num_returns)] if num_returns else None


class ActorMethod:
    """``handle.method``; call it with ``.remote(...)``."""

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: ActorHandle, name: str):
        self._handle, self._name = handle, name

    def remote(self, *args, **kwargs) -> ObjectRef:
        handle = self._handle
        return _call(handle._actor_id, self._name, f"{handle._class_name}.{self._name}", args, kwargs)

    def options(self, **options) -> _MethodWithOptions:
        """``num_returns``, ``concurrency_group``, ``name``, ``max_task_retries`` with ``retry_exceptions`` of the calls made through it."""
        check_call_options(options, "methods of actors")
        of = {**self._handle._options_of(self._name), **options}
        return _MethodWithOptions(self._handle, self._name, {k: v for k, v in of.items() if v is not None})

    def __call__(self, *args, **kwargs):
        raise TypeError(f"call {self._name}.remote(...): a method of an actor runs in the actor's process")


class _MethodWithOptions(ActorMethod):
    """One whose calls are not like most."""

    __slots__ = ("_options",)

    def __init__(self, handle: ActorHandle, name: str, options: dict[str, Any]):
        super().__init__(handle, name)
        self._options = options

    def remote(self, *args, **kwargs):
        handle, options, session = self._handle, self._options, _session()
        extra, pending = extra_of(options), handle._admit(session)
        head, buffers, deps = _pack(args, kwargs, extra)
        if options.get("max_task_retries") and options.get("retry_exceptions"):
            retries = Retries.of(options["max_task_retries"], options["retry_exceptions"])
            ref = MethodAttempts(session, handle._actor_id, self._name, session.put(head, buffers), deps, retries).start()
        else:
            ref = session.call(handle._actor_id, self._name, head, buffers, deps)
        if pending is not None:
            session.count(pending, [ref])
        return results(ref, extra, options.get("name") or f"{handle._class_name}.{self._name}")


class ActorHandle:
    """Names an actor; may be passed to other actors and tasks. Calls of one caller run in the order in which they were made."""

    def __init__(
        self,
        actor_id: str,
        class_name: str,
        methods: dict[str, dict[str, Any]],
        created: ObjectRef | None = None,
        max_pending: int = -1,
    ):
        self._actor_id, self._class_name, self._methods, self._created = actor_id, class_name, methods, created
        self._max_pending, self._pending = max_pending, None

    def __getattr__(self, name: str) -> ActorMethod:
        options = BUILT_IN.get(name) if name.startswith("__") else self._methods.get(name)
        if options is None:
            raise AttributeError(f"actor {self._class_name} has no method {name}")
        plain = not options.keys() & METHOD_OPTIONS and self._max_pending < 0
        method = ActorMethod(self, name) if plain else _MethodWithOptions(self, name, options)
        self.__dict__[name] = method  # looked up once
        return method

    def _options_of(self, name: str) -> dict[str, Any]:
        return self._methods.get(name) or {}

    def _admit(self, session: _native.Session) -> _native.Tally | None:
        """Counts the calls that are not done, if there is a bound."""
        if self._max_pending < 0:
            return None
        if self._pending is None:
            self._pending = session.tally([])
        if self._pending.of - self._pending.ready >= self._max_pending:
            raise PendingCallsLimitExceeded(f"{self._max_pending} calls wait for actor {self._class_name}: its max_pending_calls")
        return self._pending

    def __repr__(self) -> str:
        return f"Actor({self._class_name}, {self._actor_id})"

    def __reduce__(self):
        return _revive_handle, (self._actor_id, self._class_name, self._methods, self._max_pending)

    def __eq__(self, other) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)


def _revive_handle(actor_id: str, class_name: str, methods: dict[str, dict[str, Any]], max_pending: int = -1) -> ActorHandle:
    _session().know(actor_id, class_name)
    return ActorHandle(actor_id, class_name, methods, max_pending=max_pending)


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
) -> list[ActorHandle]:
    """``count`` actors of one class, placed together or not at all, by rank. Each is constructed with the same arguments.
    ``name`` is what people read (default: the class's); ``options``: the actors' own (ACTOR_OPTIONS)."""
    name, options = name or cls.__name__, options or {}
    session = _session()
    methods = methods_of(cls)
    # What cannot travel shall not leave actors behind.
    packed = _pack_creation(cls, name, methods, args, kwargs or {}, resources, options)
    ids = session.create_gang(name, count, resources, launch(torch=torch, env=env), refuse_infeasible)
    limit = options.get("max_pending_calls", -1)
    try:
        handles = [ActorHandle(i, name, methods, ObjectRef(session.call(i, "__init__", *packed), name), limit) for i in ids]
    except BaseException:
        for i in ids:
            with contextlib.suppress(Exception):
                session.kill(i)
        raise
    for handle in handles if packed[2] else ():
        when_ready(handle._created, lambda handle=handle: _end_unmade(handle, packed[2]))
    return handles


def _pack_creation(cls: type, class_name: str, methods: dict, args, kwargs: dict, resources: dict[str, float], options: dict[str, Any]):
    """The call that makes an actor: its class, what its worker has to know of it, and the arguments."""
    session = _session()
    settings = {
        "class_name": class_name,
        "creator": (session.worker, session.node),
        "name": options.get("name", ""),
        "max_pending_calls": options.get("max_pending_calls", -1),
        "resources": {k: v for k, v in resources.items() if v},
        "concurrency": concurrency_of(cls, options, methods),
    }
    return _pack((cls, settings, *args), kwargs)


def _end_unmade(handle: ActorHandle, arguments: list[_native.Ref]) -> None:
    """An actor whose arguments have failed is never made: it ends."""
    if any(a.ready and a.failed for a in arguments):
        with contextlib.suppress(Exception):
            _session().kill(handle._actor_id)


class ActorClass:
    """A class decorated with ``remote``."""

    def __init__(self, cls: type, options: dict[str, Any]):
        check_call_options(options, "actors", _OPTIONS)
        self._cls, self._options = cls, options
        self._methods = methods_of(cls)
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__

    def options(self, **options) -> ActorClass:
        return ActorClass(self._cls, {**self._options, **_check_options(options)})

    def remote(self, *args, **kwargs) -> ActorHandle:
        options = {k: v for k, v in self._options.items() if v is not None}
        return create_gang(self._cls, 1, args, kwargs, resources=_resources(options, 0), options=options)[0]

    def __call__(self, *args, **kwargs):
        raise TypeError(f"make an actor with {self.__name__}.remote(...)")

    def __reduce__(self):
        return ActorClass, (self._cls, self._options)


class RemoteFunction:
    """A function decorated with ``remote``."""

    def __init__(self, function, options: dict[str, Any]):
        if inspect.iscoroutinefunction(function):
            raise Unimplemented("async remote functions are not in this release", hint="use an ordinary function")
        check_call_options(options, "remote functions", _OPTIONS)
        self._function, self._options = function, options
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def options(self, **options) -> RemoteFunction:
        return RemoteFunction(self._function, {**self._options, **_check_options(options)})

    def remote(self, *args, **kwargs) -> ObjectRef | list[ObjectRef] | ObjectRefGenerator | None:
        from shoal._tasks import FunctionPool  # after this module: its workers are actors

        _session()
        if state.functions is None:
            state.functions = FunctionPool()
        options = {k: v for k, v in self._options.items() if v is not None}
        if "num_returns" not in options and inspect.isgeneratorfunction(self._function):
            options["num_returns"] = "streaming"
        name = options.get("name") or self.__name__
        return state.functions.submit(self._function, name, _resources(options, 1), args, kwargs, options)

    def __call__(self, *args, **kwargs):
        raise TypeError(f"call {self.__name__}.remote(...), or the plain function")

    def __reduce__(self):
        return RemoteFunction, (self._function, self._options)


def remote(*args, **options):
    """Decorator: ``@remote`` or ``@remote(num_cpus=1, num_gpus=0, memory=bytes, resources={...})`` on a class or a function.

    An actor asks for no CPU unless told so, a task for one. An actor also takes ``max_concurrency`` (threads; calls at once of a class with
    ``async def`` methods, 1000 by default), ``concurrency_groups`` (more of these, by name) and ``max_pending_calls``; a function
    ``num_returns``, ``max_retries`` (3) after deaths of its process, ``retry_exceptions``, ``max_calls`` of one process and ``name``.
    """
    if len(args) == 1 and not options and callable(args[0]):
        target = args[0]
        return ActorClass(target, {}) if inspect.isclass(target) else RemoteFunction(target, {})
    if args:
        raise TypeError("remote() takes keyword options only")
    _check_options(options)
    return lambda target: ActorClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)
