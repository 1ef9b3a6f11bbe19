"""A worker's main: takes calls from the node's process and runs them, one after the other, on one actor."""

from __future__ import annotations

import os
import sys
import traceback
from collections import deque

from shoal import _serialize
from shoal._remote import _Dep, born_again
from shoal._runtime import attach_worker, state
from shoal._tasks import FunctionWorker

UNBORN = 99  # of actors/cluster/cluster.h: the exit code of a worker whose actor could not be made


def main() -> int:
    """Serves until the process is killed: by its node, or with it."""
    state.is_worker = True
    session = attach_worker()
    instance = None
    if "SHOAL_RESTARTS" in os.environ:
        try:
            _, instance = born_again(session.birth())
        except Exception:
            traceback.print_exc()
            return UNBORN
    session.serve()
    early: deque = deque()  # calls of others that came before the creator's, which makes the actor
    while True:
        incoming = early.popleft() if early and instance is not None else session.next_call()
        if instance is None and incoming.method != "__init__":
            early.append(incoming)
            continue
        where = f"{type(instance).__name__}.{incoming.method}" if instance is not None else incoming.method
        try:
            args, kwargs = _arguments(incoming)
            if isinstance(instance, FunctionWorker):
                where = args[0].__name__
            if incoming.method == "__init__":
                cls, cls_args, cls_kwargs = args
                where = f"{cls.__name__}.__init__"
                if instance is None:  # otherwise it was started again before its creator's call arrived
                    instance = cls(*cls_args, **cls_kwargs)
                result = None
            else:
                result = getattr(instance, incoming.method)(*args, **kwargs)
            head, buffers = _serialize.dumps(result)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            error.__traceback__ = error.__traceback__.tb_next or error.__traceback__  # without this frame
            head, buffers = _serialize.dump_exception(error, where)
            session.reply(incoming, head, buffers, True)
            if isinstance(error, SystemExit):
                return error.code if isinstance(error.code, int) else 0
            if incoming.method == "__init__":  # an actor that could not be made is dead; its node tells why
                traceback.print_exception(type(error), error, error.__traceback__)
                return UNBORN
            continue
        session.reply(incoming, head, buffers)


def _arguments(incoming) -> tuple[tuple, dict]:
    args, kwargs = _serialize.loads(*incoming.args)
    deps = incoming.deps
    if not deps:
        return args, kwargs
    values = [_serialize.loads(*d) for d in deps]
    args = tuple(values[a.k] if type(a) is _Dep else a for a in args)
    return args, {k: values[a.k] if type(a) is _Dep else a for k, a in kwargs.items()}


def run_exit(code: int) -> None:
    """Ends a worker: what it printed is flushed, user threads do not keep it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


__all__ = ["main", "run_exit"]
