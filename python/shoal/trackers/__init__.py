"""Metrics of a training for TensorBoard, Weights & Biases, MLflow and Trackio.

with TensorBoard("out/tb") as tracker:
    Trainer(loop, on_report=tracker).fit()

A tracker sends from a thread of its own, behind a bounded queue. A slow, failing or hanging tracker loses entries; it never holds up or
fails a step. Their packages are optional: a tracker imports its own when it is made.
"""

from shoal.trackers._mlflow import MLflow
from shoal.trackers._tensorboard import TensorBoard
from shoal.trackers._tracker import Tracker
from shoal.trackers._trackio import Trackio
from shoal.trackers._wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "Trackio", "WandB"]
