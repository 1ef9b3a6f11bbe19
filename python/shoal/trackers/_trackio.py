"""``Trackio``: runs of Trackio."""

from __future__ import annotations

from typing import Any

from shoal.trackers._tracker import Tracker
from shoal.trackers._values import Number


class Trackio(Tracker):
    """Writes a run of Trackio on this host, for ``trackio show``. Events become alerts. ``init``: further arguments of ``trackio.init``,
    such as ``space_id`` or ``server_url``, which send the run elsewhere."""

    package = "trackio"

    def __init__(self, project: str, *, name: str | None = None, init: dict[str, Any] | None = None, **options: Any):
        super().__init__(**options)
        self._arguments = {"project": project, "name": name, "embed": False} | (init or {})

    def open(self, config: dict[str, Any]) -> None:
        self._run = self.module.init(config=config, **self._arguments)

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        self._run.log(dict(numbers), step=step)

    def log_text(self, step: int, name: str, text: str) -> None:
        failed = name == "shoal/end" and text.startswith("the training has failed")
        self._run.alert(name, text, level=self.module.AlertLevel.ERROR if failed else self.module.AlertLevel.INFO, step=step)

    def finish(self, failed: bool) -> None:
        self._run.finish()
