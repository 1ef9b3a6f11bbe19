"""Training on a cluster: a loop that runs on N workers, placed together, with a common process group.

def loop(config): ...
result = shoal.train.Trainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
"""

from shoal.train._context import TrainContext, get_context, report
from shoal.train._trainer import Result, ScalingConfig, Trainer

__all__ = ["Result", "ScalingConfig", "TrainContext", "Trainer", "get_context", "report"]
