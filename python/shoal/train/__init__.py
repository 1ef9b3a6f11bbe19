"""Training on a cluster: a loop that runs on N workers, placed together, with a common process group.

def loop(config): ...
result = shoal.train.Trainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
"""

from shoal.train._changes import Change
from shoal.train._context import TrainContext, get_context, report
from shoal.train._errors import WorkerLost
from shoal.train._scaling_config import ScalingConfig
from shoal.train._trainer import Result, Trainer

__all__ = ["Change", "Result", "ScalingConfig", "State", "TrainContext", "Trainer", "WorkerLost", "get_context", "report", "run", "steps"]


def __getattr__(name: str):
    """Imports what needs torch at its first use, so that a driver starts without it."""
    if name == "State":
        from shoal.train._state import State as found  # late: it imports torch, which a driver may not need
    elif name == "run":
        from shoal.train._steps import run as found  # late: as State
    elif name == "steps":
        from shoal.train._steps import steps as found  # late: as State
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found
