"""``remote``: classes become actors, functions become tasks."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import site
import sys
import sysconfig
from typing import Any

from shoal import _native, _serialize
from shoal._client import ObjectRef, get, put
from shoal._placement import PLACEMENT_OPTIONS, where
from shoal._runtime import _package_path, state
from shoal._runtime import session as _session
from shoal.exceptions import InvalidArgument, Unimplemented

__all__ = ["ActorClass", "ActorHandle", "RemoteFunction", "create_gang", "get_actor", "list_named_actors", "remote"]

_OPTIONS = {"num_cpus", "num_gpus", "memory", "resources"}
_ACTOR_OPTIONS = {"name", "namespace", "lifetime", "get_if_exists", "max_restarts", "max_task_retries"}
_KNOWN = _OPTIONS | _ACTOR_OPTIONS | PLACEMENT_OPTIONS
_RAYS_OTHERS = {
    "max_concurrency", "concurrency_groups",
    "max_pending_calls", "num_returns", "max_retries", "retry_exceptions", "max_calls", "runtime_env", "accelerator_type",
}  # fmt: skip


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name in _RAYS_OTHERS:
            raise Unimplemented(f"the option {name} of shoal.remote is not in this release", hint=f"use {', '.join(sorted(_KNOWN))}")
        if name not in _KNOWN:
            raise TypeError(f"unknown option {name}; there are {', '.join(sorted(_KNOWN))}")
    for name in ("name", "namespace"):
        if options.get(name) is not None and (not isinstance(options[name], str) or not options[name]):
            raise (TypeError if not isinstance(options[name], str) else ValueError)(
                f"the {name} of an actor is a str that is not empty, not {options[name]!r}"
            )
    for name in ("max_restarts", "max_task_retries"):
        count = options.get(name, 0)
        if not isinstance(count, int) or isinstance(count, bool) or count < -1:
            raise ValueError(f"{name} is an int, -1 for always, not {count!r}")
    if options.get("max_task_retries") and options.get("max_restarts", 1) == 0:
        raise ValueError("max_task_retries needs max_restarts: a call can be made again only on an actor that is started again")
    if options.get("lifetime") not in (None, "detached", "non_detached"):
        raise ValueError(f"lifetime is 'detached', 'non_detached' or None, not {options['lifetime']!r}")
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
        "env": list({"SHOAL_NAMESPACE": state.namespace, **(env or {})}.items()),
        "python_path": list(dict.fromkeys(script + ours + added)),
    }


class _Dep:
    """Stands in a pickled call for the k-th argument that was a reference."""

    __slots__ = ("k",)

    def __init__(self, k: int):
        self.k = k

    def __reduce__(self):
        return _Dep, (self.k,)


def _pack(args: tuple, kwargs: dict) -> tuple[bytes, list[memoryview], list[_native.Ref]]:
    deps: list[_native.Ref] = []
    if any(type(a) is ObjectRef for a in args) or any(type(a) is ObjectRef for a in kwargs.values()):

        def replaced(a):
            if type(a) is not ObjectRef:
                return a
            deps.append(a._ref)
            return _Dep(len(deps) - 1)

        args = tuple(replaced(a) for a in args)
        kwargs = {k: replaced(a) for k, a in kwargs.items()}
    return (*_serialize.dumps((args, kwargs)), deps)


def _call(actor_id: str, method: str, where: str, args: tuple, kwargs: dict) -> ObjectRef:
    return ObjectRef(_session().call(actor_id, method, *_pack(args, kwargs)), where)


class ActorMethod:
    """``handle.method``; call it with ``.remote(...)``."""

    __slots__ = ("_handle", "_name")

    def __init__(self, handle: ActorHandle, name: str):
        self._handle, self._name = handle, name

    def remote(self, *args, **kwargs) -> ObjectRef:
        handle = self._handle
        return _call(handle._actor_id, self._name, f"{handle._class_name}.{self._name}", args, kwargs)

    def __call__(self, *args, **kwargs):
        raise TypeError(f"call {self._name}.remote(...): a method of an actor runs in the actor's process")


class ActorHandle:
    """Names an actor; may be passed to other actors and tasks. Calls of one caller run in the order in which they were made."""

    def __init__(self, actor_id: str, class_name: str, methods: frozenset[str], created: ObjectRef | None = None):
        self._actor_id, self._class_name, self._methods, self._created = actor_id, class_name, methods, created

    def __getattr__(self, name: str) -> ActorMethod:
        if name.startswith("__") or name not in self._methods:
            raise AttributeError(f"actor {self._class_name} has no method {name}")
        method = ActorMethod(self, name)
        self.__dict__[name] = method  # looked up once
        return method

    def __repr__(self) -> str:
        return f"Actor({self._class_name}, {self._actor_id})"

    def __reduce__(self):
        return _revive_handle, (self._actor_id, self._class_name, self._methods)

    def __eq__(self, other) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)


def _revive_handle(actor_id: str, class_name: str, methods: frozenset[str]) -> ActorHandle:
    _session().know(actor_id, class_name)
    return ActorHandle(actor_id, class_name, methods)


def _methods_of(cls: type) -> frozenset[str]:
    names = {n for n, f in inspect.getmembers(cls, callable) if not n.startswith("__") or n == "__call__"}
    coroutines = sorted(n for n in names if inspect.iscoroutinefunction(getattr(cls, n)))
    if coroutines:
        raise Unimplemented(
            f"async methods of actors are not in this release ({cls.__name__}.{coroutines[0]})",
            hint="use ordinary methods",
        )
    return frozenset(names)


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
    placed: dict[str, Any] | None = None,
) -> list[ActorHandle]:
    """``count`` actors of one class, placed together or not at all, by rank. Each is constructed with the same arguments.
    ``name`` is what people read (default: the class's), ``placed`` where they may go (of ``_placement.where``)."""
    name = name or cls.__name__
    session = _session()
    methods = _methods_of(cls)
    packed = _pack((cls, tuple(args), dict(kwargs or {})), {})  # what cannot travel shall not leave actors behind
    ids = session.create_gang(name, count, resources, launch(torch=torch, env=env), refuse_infeasible, placed or {})
    try:
        return [ActorHandle(i, name, methods, ObjectRef(session.call(i, "__init__", *packed), name)) for i in ids]
    except BaseException:
        for i in ids:
            with contextlib.suppress(Exception):
                session.kill(i)
        raise


_MAX_BIRTH_BYTES = 1 << 19  # of actors/cluster/cluster.h


def _birth(cls: type, args: tuple, kwargs: dict) -> bytes:
    """What an actor is made from when it is started again. References among its arguments stay references, and large arguments become
    some."""

    def packed(value) -> tuple[bytes, list[bytes]]:
        head, buffers = _serialize.dumps(value)
        return bytes(head), [bytes(b) for b in buffers]

    out = pickle.dumps(packed((cls, args, kwargs)))
    if len(out) > _MAX_BIRTH_BYTES:
        args = tuple(a if isinstance(a, ObjectRef) else put(a) for a in args)
        kwargs = {k: a if isinstance(a, ObjectRef) else put(a) for k, a in kwargs.items()}
        out = pickle.dumps(packed((cls, args, kwargs)))
    if len(out) > _MAX_BIRTH_BYTES:
        raise InvalidArgument(
            f"the class {cls.__name__} travels as {len(out)} bytes; one that is started again may have {_MAX_BIRTH_BYTES}",
            hint="define it in a module that workers can import, without large values around it",
        )
    return out


def born_again(birth: bytes) -> tuple[type, Any]:
    """(class, instance) of an actor that is started again."""
    head, buffers = pickle.loads(birth)
    cls, args, kwargs = _serialize.loads(head, buffers)
    args = [get(a) if isinstance(a, ObjectRef) else a for a in args]
    return cls, cls(*args, **{k: get(a) if isinstance(a, ObjectRef) else a for k, a in kwargs.items()})


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The living actor of this name. ValueError (ActorNotFound) when there is none in the namespace (default: this job's)."""
    if not isinstance(name, str) or not name:
        raise (TypeError if not isinstance(name, str) else ValueError)(f"the name of an actor is a str that is not empty, not {name!r}")
    return _serialize.loads(_session().find_actor(name, namespace or state.namespace), [])


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Names of living actors in this job's namespace, or ``{"name", "namespace"}`` of all there are."""
    named = [r for r in _session().list("actors") if r["name"] and r["state"] != "DEAD"]
    if all_namespaces:
        return [{"name": r["name"], "namespace": r["namespace"]} for r in named]
    return [r["name"] for r in named if r["namespace"] == state.namespace]


class ActorClass:
    """A class decorated with ``remote``."""

    def __init__(self, cls: type, options: dict[str, Any]):
        self._cls, self._options = cls, options
        self._methods = _methods_of(cls)
        self.__name__, self.__doc__ = cls.__name__, cls.__doc__

    def options(self, **options) -> ActorClass:
        return ActorClass(self._cls, {**self._options, **_check_options(options)})

    def remote(self, *args, **kwargs) -> ActorHandle:
        """An actor. With ``name`` others find it with ``get_actor``; ``lifetime="detached"``: it outlives its job."""
        options = self._options
        if options.get("get_if_exists") and not options.get("name"):
            raise ValueError("get_if_exists needs the name of the actor to get")
        placed, env = where(options)
        restarts = options.get("max_restarts", 0)
        if not options.get("name") and options.get("lifetime") != "detached" and not restarts:
            return create_gang(self._cls, 1, args, kwargs, resources=_resources(options, 0), placed=placed, env=env)[0]
        session = _session()
        packed = _pack((self._cls, tuple(args), dict(kwargs)), {})
        handle = ActorHandle(session.new_actor_id(), self.__name__, self._methods)
        exists = session.create_actor(
            handle._actor_id,
            self.__name__,
            _resources(options, 0),
            launch(env={**env, "SHOAL_NAMESPACE": options.get("namespace") or state.namespace}),
            name=options.get("name") or "",
            name_space=options.get("namespace") or state.namespace,
            handle=_serialize.dumps(handle)[0],
            get_if_exists=bool(options.get("get_if_exists")),
            detached=options.get("lifetime") == "detached",
            where=placed,
            max_restarts=restarts,
            max_task_retries=options.get("max_task_retries", 0) if restarts else 0,
            birth=_birth(self._cls, args, kwargs) if restarts else b"",
        )
        if exists is not None:
            return _serialize.loads(exists, [])
        handle._created = ObjectRef(session.call(handle._actor_id, "__init__", *packed), self.__name__)
        if options.get("lifetime") == "detached":
            state.births = [r for r in state.births if not r.ready] + [handle._created._ref]
        return handle

    def __call__(self, *args, **kwargs):
        raise TypeError(f"make an actor with {self.__name__}.remote(...)")

    def __reduce__(self):
        return ActorClass, (self._cls, self._options)


class RemoteFunction:
    """A function decorated with ``remote``."""

    def __init__(self, function, options: dict[str, Any]):
        if inspect.iscoroutinefunction(function):
            raise Unimplemented("async remote functions are not in this release", hint="use an ordinary function")
        self._function, self._options = function, options
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def options(self, **options) -> RemoteFunction:
        return RemoteFunction(self._function, {**self._options, **_check_options(options)})

    def remote(self, *args, **kwargs) -> ObjectRef:
        from shoal._tasks import FunctionPool  # after this module: its workers are actors

        _session()
        if state.functions is None:
            state.functions = FunctionPool()
        return state.functions.submit(self._function, self.__name__, _resources(self._options, 1), where(self._options), args, kwargs)

    def __call__(self, *args, **kwargs):
        raise TypeError(f"call {self.__name__}.remote(...), or the plain function")

    def __reduce__(self):
        return RemoteFunction, (self._function, self._options)


def remote(*args, **options):
    """Decorator: ``@remote`` or ``@remote(num_cpus=1, num_gpus=0, memory=bytes, resources={...})`` on a class or a function.

    An actor asks for no CPU unless told so, a task for one.
    """
    if len(args) == 1 and not options and callable(args[0]):
        target = args[0]
        return ActorClass(target, {}) if inspect.isclass(target) else RemoteFunction(target, {})
    if args:
        raise TypeError("remote() takes keyword options only")
    _check_options(options)
    return lambda target: ActorClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)
