"""``remote``: the decorator that makes an ActorClass of a class and a RemoteFunction of a function."""

from __future__ import annotations

import inspect

from shoal._actors.actor_class import ActorClass
from shoal._actors.options import ACTOR_OPTIONS, FUNCTION_OPTIONS, DecoratorError
from shoal._actors.resources import RESOURCE_OPTIONS, check_options
from shoal._tasks.remote_function import RemoteFunction

__all__ = ["remote"]


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
    if args or not options:
        raise DecoratorError(
            "The @ray.remote decorator must be applied either with no arguments and no parentheses, for example '@ray.remote', or it must "
            f"be applied using some of the arguments in the list {sorted(ACTOR_OPTIONS | FUNCTION_OPTIONS | RESOURCE_OPTIONS)}, for "
            "example '@ray.remote(num_returns=2, resources={\"CustomResource\": 1})'."
        )
    check_options(options)
    return lambda target: ActorClass(target, options) if inspect.isclass(target) else RemoteFunction(target, options)
