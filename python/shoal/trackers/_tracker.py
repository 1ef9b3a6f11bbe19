"""``Tracker``: the base of all trackers."""

from __future__ import annotations

import atexit
import importlib
import threading
from typing import Any

from shoal._core.variables import variable
from shoal._printable import say
from shoal.exceptions import InvalidArgument, NotFound, TaskError
from shoal.trackers._queue import BoundedQueue
from shoal.trackers._values import Later, Number, plain_config, take_apart
from shoal.train import Change
from shoal.train._context import send_reports_to
from shoal.train._worker import current_worker
from shoal.util.metrics import Counter


class Tracker:
    """Sends metrics to a program that shows them. Subclasses are ``TensorBoard``, ``WandB``, ``MLflow``, ``Trackio``, and your own.

    Pass it as ``Trainer(loop, on_report=tracker)``; it gets the training's config, its changes of workers and its end, too. In a script
    under torchrun or ``shoal run``, make one on each rank and call it with a dict of metrics, or call ``receive_reports()`` once, after
    which ``shoal.train.report`` does so. It is active in a process without a rank and on rank 0, and does nothing on other ranks.

    Metrics are numbers, also NaN and infinite ones, and tensors or arrays with one element; dicts in dicts get names with "/". ``step`` is
    the number of the entry, or else reports are counted. Texts become events. Other values are left out.

    No call waits for the tracker or raises because of it. ``queue_size``: entries that wait; a full queue drops its oldest. ``lost``: the
    number of entries that did not arrive, also exported as ``shoal_user_tracker_lost_total`` (``shoal.util.metrics``); ``cause``: the first
    reason, also when nothing is lost yet. Each kind of reason is printed once. ``slow_after``: seconds after which an entry counts as
    hanging. A tracker that keeps Python's interpreter lock while it hangs stops the process, as any thread does.

    A subclass overrides ``open``, ``log``, ``log_text`` and ``finish``, which one thread calls, in this order.
    """

    package = ""  # the package to install

    def __init__(self, *, config: dict[str, Any] | None = None, queue_size: int = 1000, slow_after: float = 30.0):
        """``config``: hyperparameters, logged once; those of a Trainer (``train_loop_config``) join them. Raises NotFound without the
        tracker's package, and InvalidArgument for a ``queue_size`` below 1."""
        if queue_size < 1:
            raise InvalidArgument(f"queue_size is at least 1, not {queue_size}")
        self.active = variable("RANK", "0") == "0"
        self.lost = 0
        self.cause: str | None = None
        self._config = dict(config or {})
        self._queue_size, self._slow_after = queue_size, slow_after
        self._queue: BoundedQueue | None = None
        self._closed = self._failed = False
        self._reports = 0
        self._step = 0
        self._lock = threading.Lock()
        self._said: set[str] = set()
        if self.active:
            self._counter = Counter("tracker_lost", "Entries that a tracker did not take.", ("tracker",))
            self.module = self._imported()

    # ---- for subclasses ----

    def open(self, config: dict[str, Any]) -> None:
        """Begins the tracker's run. ``config``: the hyperparameters by name."""

    def log(self, step: int, numbers: dict[str, Number]) -> None:
        """Takes the numbers of a step."""
        raise NotImplementedError

    def log_text(self, step: int, name: str, text: str) -> None:
        """Takes an event, such as a change of the workers."""

    def finish(self, failed: bool) -> None:
        """Ends the tracker's run."""

    # ---- for the training ----

    def __call__(self, metrics: dict[str, Any]) -> None:
        """Queues the metrics of a report. TypeError unless they are a dict."""
        if not isinstance(metrics, dict):
            raise TypeError(f"a tracker takes a dict of metrics, not {type(metrics).__name__}")
        if not self.active:
            return
        numbers, texts = take_apart(metrics, lambda why: self._lose(1, "value", why))
        step = numbers.pop("step", None)
        self._step = step if isinstance(step, int) else int(step) if isinstance(step, float) and step.is_integer() else self._reports
        self._reports += 1
        self._put(self._step, numbers, texts)

    def receive_reports(self) -> None:
        """Makes ``shoal.train.report`` of this rank call the tracker. Raises InvalidArgument in a Trainer's worker, whose reports
        the driver gets."""
        if current_worker() is not None:
            raise InvalidArgument("a Trainer's workers report to their driver", hint="pass the tracker as Trainer(..., on_report=tracker)")
        send_reports_to(self)

    def on_begin(self, config: Any) -> None:
        """Called by a Trainer before its workers start, with ``train_loop_config``."""
        if isinstance(config, dict) and self._queue is None:
            self._config = {**config, **self._config}
        self._put(self._step, {}, {})

    def on_change(self, change: Change) -> None:
        """Called by a Trainer after a change of the number of its workers."""
        numbers = {} if change.cut_off else {"shoal/pause_seconds": change.seconds, "shoal/moved_bytes": change.moved_bytes}
        self._put(change.step, {"shoal/workers": change.workers} | numbers, {"shoal/change": str(change)})

    def on_end(self, error: BaseException | None) -> None:
        """Called by a Trainer at its end, with its error if it fails. The tracker stays open until ``close``."""
        self._failed = error is not None
        cause = (error.cause if isinstance(error, TaskError) else None) or error  # a TaskError's own text has its traceback
        text = "the training has ended" if error is None else f"the training has failed: {type(cause).__name__}: {cause}"
        self._put(self._step, {}, {"shoal/end": text})

    def close(self, timeout: float = 10.0) -> bool:
        """Sends what waits, ends the tracker's run, and returns True. Waits at most ``timeout`` seconds; what is left then is lost, and the
        result False. The end of the process calls it, too."""
        with self._lock:
            queue, self._closed = self._queue, True
        if queue is None:
            return True
        atexit.unregister(self.close)
        complete = queue.close(timeout)
        if self.lost and "lost" not in self._said:
            self._said.add("lost")
            say(f"shoal: {self} has lost {self.lost} entries. The first cause: {self.cause}")
        return complete

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._failed |= error is not None
        self.close()

    def __str__(self) -> str:
        return f"tracker {type(self).__name__}"

    def __reduce__(self):
        raise TypeError(f"{self} belongs to the process that made it: pass it as on_report=, or make it in the loop")

    # ---- its parts ----

    def _imported(self) -> Any:
        if not self.package:
            return None
        try:
            return importlib.import_module(self.package)
        except ImportError as error:
            raise NotFound(
                f"{self} needs the package {self.package}, which cannot be imported here: {error}", hint=f"pip install {self.package}"
            ) from None

    def _put(self, step: int, numbers: dict[str, Any], texts: dict[str, str]) -> None:
        if not self.active:
            return
        with self._lock:
            if self._queue is None and not self._closed:
                name, config = f"shoal-{type(self).__name__.lower()}", plain_config(self._config)
                self._queue = BoundedQueue(
                    name, self._queue_size, self._slow_after, self._lose, lambda: self._begin(config), lambda: self.finish(self._failed)
                )
                atexit.register(self.close)
            queue = self._queue
        if queue is None:
            self._lose(1, "closed", "it is closed")
        elif numbers or texts:
            queue.put(lambda: self._send(step, numbers, texts))

    def _begin(self, config: dict[str, Any]) -> None:
        self.open(config)
        # At the process's end, functions run in the reverse order of their registration. A tracker's package registers its own in open, and
        # close has to run before that.
        if not self._closed:
            atexit.register(self.close)

    def _send(self, step: int, numbers: dict[str, Any], texts: dict[str, str]) -> None:
        values = {name: v.value() if isinstance(v, Later) else v for name, v in numbers.items()}
        if values:
            self.log(step, values)
        for name, text in texts.items():
            self.log_text(step, name, text)

    def _lose(self, count: int, kind: str, cause: str) -> None:
        with self._lock:
            self.lost += count
            self.cause = self.cause or cause
            known = kind in self._said
            self._said.add(kind)
        if count:
            self._counter.inc(count, {"tracker": type(self).__name__})
        if not known:
            say(f"shoal: {self}: {cause}. The training goes on; shoal_user_tracker_lost_total counts lost entries")
