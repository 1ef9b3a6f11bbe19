"""``MLflow``: runs of an MLflow tracking server, file or database."""

from __future__ import annotations

import time
from typing import Any

from shoal.trackers._tracker import Tracker
from shoal.trackers._values import Number

# Limits of MLflow's stores.
_MOST_METRICS, _MOST_PARAMS = 1000, 100
_LONGEST_PARAM, _LONGEST_TAG = 6000, 5000


class MLflow(Tracker):
    """Writes a run of MLflow. ``tracking_uri``: as in ``mlflow.set_tracking_uri``, or else MLflow's own setting (``MLFLOW_TRACKING_URI``).

    The config becomes parameters, an event the tag ``shoal.events.NUMBER``. The run is ``FAILED`` if the training fails.
    """

    package = "mlflow"

    def __init__(self, experiment: str = "Default", *, tracking_uri: str | None = None, run_name: str | None = None, **options: Any):
        super().__init__(**options)
        self._experiment, self._uri, self._run_name = experiment, tracking_uri, run_name
        self._events = 0

    def open(self, config: dict[str, Any]) -> None:
        self._client = self.module.MlflowClient(self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        self._run_id = self._client.create_run(experiment, run_name=self._run_name).info.run_id
        params = [self.module.entities.Param(_name(name), str(value)[:_LONGEST_PARAM]) for name, value in config.items()]
        for at in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[at : at + _MOST_PARAMS])

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.module.entities.Metric(_name(name), float(value), now, step) for name, value in numbers.items()]
        for at in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[at : at + _MOST_METRICS])

    def log_text(self, step: int, name: str, text: str) -> None:
        self._client.set_tag(self._run_id, f"shoal.events.{self._events:04}", f"step {step}: {name}: {text}"[:_LONGEST_TAG])
        self._events += 1

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


def _name(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
