"""Training on a cluster: a loop that runs on N workers, placed together, with a common process group.

def loop(config): ...
result = shoal.train.Trainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
"""

from shoal.train._changes import Change
from shoal.train._context import TrainContext, get_context, report
from shoal.train._scaling_config import ScalingConfig
from shoal.train._trainer import Result, Trainer
from shoal.train._worker import WorkerLost

__all__ = ["Change", "Result", "ScalingConfig", "State", "TrainContext", "Trainer", "WorkerLost", "get_context", "report", "run", "steps"]


def __getattr__(name: str):
    """Imports what needs torch at its first use, so that a driver starts without it."""
    if name not in ("State", "run", "steps"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shoal.train import _steps  # late: it imports torch, which a driver may not need

    globals()[name] = found = getattr(_steps, name)
    return found
