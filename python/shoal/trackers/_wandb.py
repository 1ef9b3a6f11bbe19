"""``WandB``: runs of Weights & Biases."""

from __future__ import annotations

import os
from typing import Any

from shoal._core.variables import variable
from shoal.trackers._tracker import Tracker
from shoal.trackers._values import Number


class WandB(Tracker):
    """Writes a run of Weights & Biases. It is offline unless ``mode`` or the variable ``WANDB_MODE`` says "online": ``wandb sync`` sends
    its folder later. ``init``: further arguments of ``wandb.init``."""

    package = "wandb"

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        init: dict[str, Any] | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        given = {"project": project, "name": name, "dir": None if dir is None else os.fspath(dir)}
        self._arguments = {k: v for k, v in given.items() if v is not None} | (init or {})
        self.mode = mode or variable("WANDB_MODE", "offline")

    def open(self, config: dict[str, Any]) -> None:
        self._run = self.module.init(config=config, mode=self.mode, **self._arguments)
        # An axis of its own: wandb drops rows whose step is before the last one, as of a step that runs again after a death.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        self._run.log({**numbers, "step": step})

    def log_text(self, step: int, name: str, text: str) -> None:
        self._run.log({name: text, "step": step})

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
