"""``TensorBoard``: event files of TensorBoard."""

from __future__ import annotations

import os
from typing import Any

from shoal.trackers._tracker import Tracker
from shoal.trackers._values import Number


class TensorBoard(Tracker):
    """Writes event files into the folder ``log_dir``, for ``tensorboard --logdir``. The config is a text and an entry of the tab HPARAMS.

    ``flush_seconds``: the age up to which events may wait in memory.
    """

    package = "tensorboard"

    def __init__(self, log_dir: str | os.PathLike[str], *, flush_seconds: int = 10, **options: Any):
        super().__init__(**options)
        self._folder, self._flush_seconds = os.fspath(log_dir), flush_seconds

    def open(self, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # late: it needs the package
        from torch.utils.tensorboard.summary import hparams  # late: it needs the package

        self._writer = SummaryWriter(self._folder, flush_secs=self._flush_seconds)
        if config:
            self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()), 0)
            for summary in hparams(config, {}):  # add_hparams would make a folder of its own
                self._writer.file_writer.add_summary(summary)
        self._writer.flush()

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step, new_style=True)

    def log_text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, text, step)

    def finish(self, failed: bool) -> None:
        self._writer.close()
