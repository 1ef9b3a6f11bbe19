"""Output and summaries of a training loop (``torch_xla.test.test_utils``, which scripts import)."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def now(format: str = "%H:%M:%S") -> str:
    return datetime.now().strftime(format)


def print_training_update(
    device: Any, step: Any, loss: Any, rate: float, global_rate: float, epoch: Any = None, summary_writer: Any = None
) -> None:
    """Prints one line, and writes loss and rate to ``summary_writer``, if any. ``rate``: examples per second."""
    parts = [f"Training Device={device}", f"Step={step}", f"Loss={float(loss):.5f}", f"Rate={rate:.2f}", f"GlobalRate={global_rate:.2f}"]
    print(" ".join([*parts, *([f"Epoch={epoch}"] if epoch is not None else []), f"Time={now()}"]), flush=True)
    write_to_summary(summary_writer, dict_to_write={"loss": float(loss), "examples/sec": rate})


def print_test_update(device: Any, accuracy: float | None, epoch: Any = None, step: Any = None) -> None:
    """Prints one line; ``accuracy`` in percent."""
    parts = [f"Test Device={device}"] + [f"{name}={value}" for name, value in (("Step", step), ("Epoch", epoch)) if value is not None]
    print(" ".join([*parts, *([f"Accuracy={accuracy:.2f}"] if accuracy is not None else []), f"Time={now()}"]), flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """Returns a writer of TensorBoard, which must be installed; None without a folder."""
    if not logdir:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def write_to_summary(
    summary_writer: Any, global_step: int | None = None, dict_to_write: dict | None = None, write_xla_metrics: bool = False
) -> None:
    """Writes scalars by name; does nothing without a writer."""
    if summary_writer is not None:
        for name, value in (dict_to_write or {}).items():
            summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    if summary_writer is not None:
        summary_writer.close()
