"""One worker of a training, from the view of its own process: the role in which the driver starts it, and its life.

From start to end:

1. The driver (``_driver/run.py``) starts an actor, ``TrainWorker`` (``_actor.py``), and calls its ``run`` with a ``Role``.
2. ``run`` makes the one ``Worker`` of its process, then a process group, and calls the user's loop.
3. The first batch of ``steps`` or ``run`` (``_steps.py``) makes a gang and enters it: the workers that train together (``_gang.py``). A new
   worker of a running training waits there for the others.
4. Before each batch the loop calls the gang's ``boundary``. In an elastic training the workers may change there, and after an error
   ``recover`` goes on without the dead ones (``_elastic_gang.py``).
5. If a death ends the loop, or that of another worker, ``TrainWorker`` calls the loop again. Its gang takes over the state of its
   ``predecessor``, the gang of the loop before.
6. The loop returns, raises an error, or leaves: the new generation has no place for this worker, and ``WorkerLeaves`` unwinds the loop.
   ``TrainWorker`` leaves all groups, and the driver gets the loop's result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shoal._actors.handle import ActorHandle
from shoal.exceptions import Unavailable
from shoal.train._scaling_config import ScalingConfig


@dataclass(frozen=True, kw_only=True)
class Role:
    """The facts with which the driver starts a worker. ``number``: counts the workers of a training in the order of their creation.
    ``environment``: torchrun's variables, until a change of the workers sets others. ``scaling``: as the user has given it to the Trainer.
    ``newcomer``: the others train already. Its loop runs alone until its first batch, where it joins them."""

    number: int
    environment: dict[str, str]
    scaling: ScalingConfig
    newcomer: bool = False


class Worker:
    """The life of this process's training. Each object of it that needs these values gets the worker as an argument."""

    def __init__(self, role: Role, driver: ActorHandle):
        self.role, self.scaling, self.driver = role, role.scaling, driver
        self.generation = 0 if role.newcomer else 1  # the training generation in which it trains; 0 until a newcomer has joined
        self.num_reports = 0
        self.left = False  # the others go on without it, and its loop unwinds
        self.mid_batch = False  # a part of a batch runs that is not this worker's last: effects of the end of a step wait
        self.store: Any = None  # the store of the first process group, kept to the end
        self.gang: Any = None  # the ElasticGang of the present loop; None in a training of fixed size
        self.predecessor: Any = None  # the gang of a loop that a death has ended, until that of the next loop takes over its state

    def spoil_step(self) -> None:
        """Called before the groups of devices are aborted: gradients that come from them do not count."""
        if self.gang is not None:
            self.gang.spoil_step()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Makes this worker the process's ``current_worker`` for the time of its loop. Nothing else sets it."""
        global _current
        _current = self
        try:
            yield
        finally:
            _current = self.gang = self.predecessor = None


class WorkerLost(Unavailable):
    """A worker of an elastic training is gone with its part of the model, and the others cannot go on. The message has the reason."""

    def __init__(self, message: str = "", **options):
        super().__init__(message, **{"reason": "WorkerLost", **options})


class WorkerLeaves(BaseException):
    """Unwinds the loop of a worker that has left the training. It is no Exception, so that the loop's own handlers pass it on."""


class RunAgain(BaseException):
    """Ends a loop that has to run again, because the loop of another worker has to. ``gang``: hands its state on to the next loop."""

    def __init__(self, gang: Any):
        super().__init__("the loop runs again")
        self.gang = gang


_current: Worker | None = None


def current_worker() -> Worker | None:
    """Returns the worker whose loop runs in this process, or None: in a driver, and where another launcher has started the loop.

    Only for functions that the user's loop calls, which have no argument for it: ``get_context``, ``report``, ``steps``, ``run``."""
    return _current
