"""Retries of methods."""

import threading
from types import SimpleNamespace

from shoal._actors import retry
from shoal._actors.retry import MethodAttempts, Retries


def test_an_attempt_that_ends_before_its_caller_continues_is_judged(monkeypatch):
    judging, settled = [], []

    class Attempts:
        """Attempts whose answer arrives before ``start`` returns."""

        ref = None

        def start(self, *_):
            thread = threading.Thread(target=judge[0])
            thread.start()
            judging.append(thread)
            thread.join(0.2)  # the judging thread may block
            return attempt

        def settle(self, _, attempt):
            settled.append(attempt)

    judge, attempt = [], SimpleNamespace(raised=False)
    awaited = SimpleNamespace(number=lambda callback: judge.append(callback), forget=lambda _: None, readiness=None)
    monkeypatch.setattr(retry, "callbacks", lambda: awaited)
    monkeypatch.setattr(retry, "when_ready", lambda *_: None)
    call = MethodAttempts(None, SimpleNamespace(id="a"), "m", None, [], Retries.from_options(3, True), attempts=Attempts())
    call.start()
    judging[0].join(60)
    assert settled == [attempt]
