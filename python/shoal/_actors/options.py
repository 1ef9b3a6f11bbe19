"""Options of calls (``options``, ``remote``, ``method``) other than resources, and their checks. Names and errors are Ray's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from shoal._actors.placement import NO_GROUP, PLACEMENT_OPTIONS, check_fallback, check_resource_name
from shoal._core.numbers import amount, flag, whole
from shoal._core.signature import of_method
from shoal._runtime_env import environment
from shoal.exceptions import Unimplemented

__all__ = [
    "ACTOR_OPTIONS",
    "FUNCTION_OPTIONS",
    "INVOCATION_DECORATOR",
    "METHOD_OPTIONS",
    "DecoratorError",
    "check_actor_options",
    "check_call_options",
    "concurrency_of",
    "meant",
    "method",
    "methods_of",
    "with_retries",
]

_ANYWHERE = {"enable_task_events", "_labels"}  # Ray's options without effect here
ACTOR_OPTIONS = PLACEMENT_OPTIONS | _ANYWHERE | {
    "object_store_memory", "enable_tensor_transport", "_actor_generator_backpressure_num_objects",
    "max_concurrency", "concurrency_groups", "max_pending_calls", "allow_out_of_order_execution",
    "runtime_env", "name", "namespace", "lifetime", "get_if_exists", "max_restarts", "max_task_retries",
}  # fmt: skip
_STREAMS = {"_generator_backpressure_num_objects", "_num_objects_per_yield"}
FUNCTION_OPTIONS = PLACEMENT_OPTIONS | _ANYWHERE | _STREAMS | {
    "object_store_memory",
    "runtime_env", "num_returns", "max_retries", "retry_exceptions", "max_calls", "name",
}  # fmt: skip
METHOD_OPTIONS = frozenset({
    "num_returns", "concurrency_group", "max_task_retries", "retry_exceptions", "name", "tensor_transport",
} | _STREAMS | _ANYWHERE)  # fmt: skip
_OF = {"actors": ACTOR_OPTIONS, "remote functions": FUNCTION_OPTIONS, "methods of actors": METHOD_OPTIONS}

# Attribute of a function or method: a decorator of the function (args, kwargs) -> reference by which ``remote`` makes the call.
INVOCATION_DECORATOR = "__ray_invocation_decorator__"

# Default limit of concurrent calls of an async actor.
ASYNC_MAX_CONCURRENCY = 1000


class DecoratorError(AssertionError, TypeError, ValueError):
    """A decorator is applied with arguments that it does not take. Ray raises an AssertionError there, so this is one, too."""


_ACCEPTS = {-1: "None, 0, -1 or a positive integer, where -1 represents infinity", 0: "None, 0 or a positive integer"}


def _whole(name: str, lowest: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        value = whole(name, value)
        if value < lowest:
            accepts = f"The keyword '{name}' only accepts {_ACCEPTS[lowest]}" if lowest in _ACCEPTS else f"{name} is at least {lowest}"
            raise ValueError(f"{accepts}, not {value}.")
        return value

    return check


def _amount(name: str) -> Callable[[Any], int | float]:
    return partial(amount, name)


def meant(name: str, known: Iterable[str]) -> str:
    """A hint for the error about an unknown ``name``: the most similar known name, else all public ones."""
    from difflib import get_close_matches

    public = sorted(k for k in known if not k.startswith("_"))
    close = get_close_matches(name, public, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(public)}"


def _resources(value: Any) -> dict[str, int | float]:
    if not isinstance(value, dict):
        raise TypeError(f"resources is a dict of amounts by name, not {type(value).__name__}")
    for name in value:
        if name in ("CPU", "GPU"):
            raise ValueError(f"{name} does not stand in resources: use num_{name.lower()}s")
        check_resource_name(name)
    return {name: amount(f"resources[{name!r}]", wanted) for name, wanted in value.items()}


def _num_returns(value: Any) -> int | str:
    value = value if isinstance(value, str) else whole("num_returns", value)
    if value not in ("streaming", "dynamic") and (isinstance(value, str) or value < 0):
        raise ValueError(
            "The keyword 'num_returns' only accepts None, a non-negative integer, 'streaming' (for generators), or 'dynamic', not "
            f"{value!r}."
        )
    return value


def _retry_exceptions(value: Any) -> bool | list | tuple:
    if not isinstance(value, (list, tuple)):
        try:
            return flag("retry_exceptions", value)
        except TypeError as error:
            raise TypeError(f"{error}, nor a list of exception classes") from None
    for cls in value:
        if not (inspect.isclass(cls) and issubclass(cls, BaseException)):
            raise TypeError(f"retry_exceptions lists exception classes, not {cls!r}")
    return value


def _concurrency_groups(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError(f"concurrency_groups is a dict of sizes by name, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str):
            raise TypeError(f"the name of a concurrency group is a str, not {name!r}")
    return {name: _whole(f"the size of the concurrency group {name}", 1)(size) for name, size in value.items()}


def _text(name: str, empty: str = "") -> Callable[[Any], None]:
    """``empty``: the message for an empty text."""

    def check(value: Any) -> None:
        if not isinstance(value, str):
            raise TypeError(f"{name} is a str, not {type(value).__name__}")
        if not value:
            raise ValueError(empty or f"{name} is not empty")

    return check


def _flag(name: str) -> Callable[[Any], bool]:
    return partial(flag, name)


def _lifetime(value: Any) -> None:
    if value not in ("detached", "non_detached"):
        raise ValueError(f"actor `lifetime` argument must be one of 'detached', 'non_detached' and 'None', not {value!r}")


def check_actor_options(options: dict[str, Any]) -> None:
    """Raises ValueError for options that are valid alone but not together."""
    if options.get("get_if_exists") and not options.get("name"):
        raise ValueError("get_if_exists needs the name of the actor to get")


def _backpressure(name: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        value = whole(name, value)
        if value == 0:
            raise ValueError(f"{name} is above 0, or -1 for none")
        if value > 0:
            raise Unimplemented("generators that wait until their results are taken", hint=f"leave {name} out")

    return check


def _unsupported(name: str, hint: str, default: Any = None) -> Callable[[Any], None]:
    """Returns a check for an unsupported option of Ray, which accepts only Ray's default."""

    def check(value: Any) -> None:
        if value != default:
            raise Unimplemented(f"the option {name} is not in this release", hint=hint)

    return check


# Options whose checks return a converted value (Python's own numbers and flags).
_NUMBERS = frozenset({
    "allow_out_of_order_execution", "concurrency_groups", "enable_task_events", "get_if_exists", "max_calls", "max_concurrency",
    "max_pending_calls", "max_restarts", "max_retries", "max_task_retries", "memory", "num_cpus", "num_gpus", "num_returns",
    "placement_group_capture_child_tasks", "resources", "retry_exceptions",
})  # fmt: skip
_TENSORS = "tensors are passed as they are, through shared memory; shoal.collective sends them between actors"
_CHECKS = {
    "_actor_generator_backpressure_num_objects": _backpressure("_actor_generator_backpressure_num_objects"),
    "_generator_backpressure_num_objects": _backpressure("_generator_backpressure_num_objects"),
    "_num_objects_per_yield": _unsupported("_num_objects_per_yield", "yield a list, or a value at a time", 1),
    "enable_task_events": _flag("enable_task_events"),
    "enable_tensor_transport": _unsupported("enable_tensor_transport", _TENSORS, False),
    "fallback_strategy": check_fallback,
    "placement_group_capture_child_tasks": _flag("placement_group_capture_child_tasks"),
    "allow_out_of_order_execution": _flag("allow_out_of_order_execution"),
    "concurrency_group": _text("concurrency_group"),
    "concurrency_groups": _concurrency_groups,
    "get_if_exists": _flag("get_if_exists"),
    "lifetime": _lifetime,
    "max_calls": _whole("max_calls", 0),
    "memory": _amount("memory"),
    "num_cpus": _amount("num_cpus"),
    "num_gpus": _amount("num_gpus"),
    "object_store_memory": _unsupported("object_store_memory", "calls cannot reserve it: values without room in memory go to files"),
    "resources": _resources,
    "max_concurrency": _whole("max_concurrency", 1),
    "max_pending_calls": _whole("max_pending_calls", -1),
    "max_restarts": _whole("max_restarts", -1),
    "max_retries": _whole("max_retries", -1),
    "max_task_retries": _whole("max_task_retries", -1),
    "name": _text("name"),
    "namespace": _text("namespace"),
    "num_returns": _num_returns,
    "retry_exceptions": _retry_exceptions,
    "runtime_env": environment.check,
    "tensor_transport": _unsupported("tensor_transport", _TENSORS),
}
_ACTOR_CHECKS = {**_CHECKS, "name": _text("name", "Actor name cannot be an empty string.")}


def check_call_options(options: dict[str, Any], kind: str, others: frozenset[str] | set[str] = frozenset()) -> dict[str, Any]:
    """Returns the options with converted numbers; None stands for a default. Raises Ray's error for an option that ``kind`` (in _OF) does
    not have, or for an invalid value."""
    out, checks = dict(options), _ACTOR_CHECKS if kind == "actors" else _CHECKS
    for name, value in options.items():
        if name not in others and name not in _OF[kind]:
            raise ValueError(f"{name} is no option of {kind}; {meant(name, {*others, *_OF[kind]})}")
        if value is not None and name in checks:  # options of placement have no check here: placement.where checks them
            checked = checks[name](value)
            out[name] = checked if name in _NUMBERS else value
        elif value is None and name == "placement_group":  # here None is not the default, which is the creator's group
            out[name] = NO_GROUP
    return out


def method(*args, **options):
    """Decorator of an actor's method: ``@method(num_returns=2, concurrency_group="io")`` sets its calls' defaults."""
    if len(args) == 1 and callable(args[0]) and not options:
        return args[0]
    if args:
        raise DecoratorError(
            "The @ray.method decorator must be applied using no arguments or at least one of the arguments in the list "
            f"{sorted(METHOD_OPTIONS)}, for example '@ray.method(num_returns=2)'."
        )
    for name in options.keys() - METHOD_OPTIONS:
        raise DecoratorError(
            f"Unexpected keyword argument to @ray.method: '{name}'. The supported keyword arguments are {sorted(METHOD_OPTIONS)}; "
            f"{meant(name, METHOD_OPTIONS)}"
        )
    options = check_call_options(options, "methods of actors")

    def decorate(function):
        function.__shoal_options__ = {k: v for k, v in options.items() if v is not None}
        return function

    return decorate


# Methods that every actor has (shoal._worker).
BUILT_IN = {"__ray_ready__": {}, "__ray_call__": {}, "__ray_terminate__": {}}


def _callables(cls: type) -> list[tuple[str, Any]]:
    """The methods that can be called on an actor. Dunder methods count only if the class itself defines them as functions."""
    there = inspect.getmembers(cls, callable)
    return [(name, f) for name, f in there if not name.startswith("__") or (inspect.isfunction(f) and name not in vars(object))]


def methods_of(cls: type) -> dict[str, dict[str, Any]]:
    """The options and the signature of each method, by name; a handle has no other information."""
    out = {}
    for name, function in _callables(cls):
        streams = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        takes = {} if (signature := of_method(cls, name)) is None else {"takes": tuple(signature)}
        out[name] = {**takes, **({"num_returns": "streaming"} if streams else {}), **getattr(function, "__shoal_options__", {})}
        if (decorator := getattr(function, INVOCATION_DECORATOR, None)) is not None:
            out[name]["invocation"] = decorator
    return out


def with_retries(methods: dict[str, dict[str, Any]], of_actor: int | None) -> dict[str, dict[str, Any]]:
    """Adds the actor's max_task_retries, for methods with retry_exceptions and no own number."""
    return {name: {**of, "of_actor": of_actor} for name, of in methods.items()} if of_actor else methods


def is_async(cls: type) -> bool:
    """True if the constructor or a method is ``async def``. The actor then runs on loops, one for each concurrency group."""
    methods = [cls.__init__, *(f for _, f in _callables(cls))]
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in methods)


def concurrency_of(cls: type, options: dict[str, Any], methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the concurrency settings for a worker. They are empty for an ordinary actor, which runs one call at a time in the main
    thread."""
    groups = dict(options.get("concurrency_groups") or {})
    for name, of in methods.items():
        if of.get("concurrency_group") not in (None, *groups):
            raise ValueError(f"method {cls.__name__}.{name} is in the concurrency group {of['concurrency_group']}, which is not declared")
    asynchronous, size = is_async(cls), options.get("max_concurrency")
    if not asynchronous and not groups and size in (None, 1):
        return {}
    size = size or (ASYNC_MAX_CONCURRENCY if asynchronous else 1)
    return {"async": asynchronous, "max_concurrency": size, "groups": groups}
