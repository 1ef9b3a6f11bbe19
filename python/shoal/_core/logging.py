"""``LoggingConfig``: the format of Python's root logger in a job's driver and workers. Names and fields are Ray's."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal._core.context import current_call, running
from shoal._core.process import state

__all__ = ["LoggingConfig", "apply", "from_environment"]

_VARIABLE = "SHOAL_LOGGING"  # the driver's config, for its workers
_STANDARD = ("asctime", "levelname", "message", "filename", "lineno")


@dataclass(frozen=True)
class LoggingConfig:
    """``encoding``: "TEXT" or "JSON", a line per record on stderr. ``log_level``: a name or number of ``logging``.

    ``additional_log_standard_attrs``: further attributes of ``logging.LogRecord`` to write.
    Every record has the ids of job, node and worker, and of actor and task if any.
    """

    encoding: str = "TEXT"
    log_level: str | int = "INFO"
    additional_log_standard_attrs: list[str] = field(default_factory=list)

    def __post_init__(self):
        if self.encoding not in ("TEXT", "JSON"):
            raise ValueError(f"a log's encoding is 'TEXT' or 'JSON', not {self.encoding!r}")
        logging.Handler().setLevel(self.log_level)  # checks the level: raises ValueError or TypeError
        attributes = self.additional_log_standard_attrs
        unknown = [a for a in attributes if a not in _PLAIN] if isinstance(attributes, (list, tuple)) else [attributes]
        if unknown:
            raise ValueError(f"{', '.join(map(repr, unknown))} is no attribute of logging.LogRecord")

    def _as_environment(self) -> dict[str, str]:
        """The variable by which a worker applies this config (``from_environment``)."""
        return {_VARIABLE: json.dumps(asdict(self))}


_PLAIN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime"}


def _origin() -> dict[str, str]:
    session = state.session
    if session is None:
        return {}
    out = {"job_id": session.job, "node_id": session.node, "worker_id": session.worker}
    call = current_call() if state.is_worker else None
    if running.actor_id:
        out |= {"actor_id": running.actor_id, "actor_name": running.settings.get("name", "")}
    if call is not None:
        out |= {"task_id": call.task_id, "task_name": (call.extra or {}).get("name") or call.where, "task_func_name": call.where}
    return out


class _Formatter(logging.Formatter):
    def __init__(self, more: list[str]):
        super().__init__()
        self._more = more

    def _parts(self, record: logging.LogRecord) -> dict[str, Any]:
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        given = {k: v for k, v in vars(record).items() if k not in _PLAIN}  # arguments of ``extra=``
        try:
            origin = _origin()
        except Exception:  # the session may be closed at this moment
            origin = {}
        return {k: getattr(record, k) for k in (*_STANDARD, *self._more)} | origin | given

    def _trace(self, record: logging.LogRecord) -> str:
        return "\n".join(filter(None, [self.formatException(record.exc_info) if record.exc_info else "", record.stack_info or ""]))


class _Json(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = self._trace(record)
        return json.dumps(self._parts(record) | ({"exc_text": trace} if trace else {}), default=str)


class _Text(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = self._parts(record)
        head = "{asctime}\t{levelname} {filename}:{lineno} -- {message}".format_map(parts)
        rest = " ".join(f"{k}={v}" for k, v in parts.items() if k not in _STANDARD)
        return "\n".join(filter(None, [f"{head} {rest}".rstrip(), self._trace(record)]))


def apply(config: LoggingConfig) -> None:
    """Makes the root logger of this process write with one handler, as ``config`` asks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter((_Json if config.encoding == "JSON" else _Text)(list(config.additional_log_standard_attrs)))
    logging.basicConfig(handlers=[handler], level=config.log_level, force=True)


def from_environment() -> LoggingConfig | None:
    given = os.environ.get(_VARIABLE)
    return LoggingConfig(**json.loads(given)) if given else None
