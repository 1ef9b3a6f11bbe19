"""The end of workers of this process's functions, with and without a head."""

import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest

from shoal._actors.ownership import ActorOwnership, _Owned
from shoal._actors.retry import Retries
from shoal._tasks import pool
from shoal._tasks.pool import FunctionPool, _Leaving, _Pool
from shoal.exceptions import NotFound, Unavailable


class Session:
    """A session that records requests, unless the head is away."""

    def __init__(self):
        self.away, self.unknown, self.asked, self.done = False, set(), 0, []

    def _ask(self, what, who):
        self.asked += 1
        if self.away:
            raise Unavailable("the head is away", reason="HeadGone")
        if who in self.unknown:
            raise NotFound(f"no actor {who}")
        self.done.append(f"{what} {who}")

    def kill(self, actor):
        self._ask("kill", actor)

    def retire(self, worker):
        self._ask("retire", worker)

    def know(self, actor, _):
        self._ask("know", actor)


class Words:
    """The last words of a worker, an object that becomes ready."""

    def __init__(self, *made):
        self._ref, self.made, self.published = SimpleNamespace(ready=False), list(made), 0

    def _publish(self):
        self.published += 1


@pytest.fixture
def pools(monkeypatch):
    monkeypatch.setattr(pool, "session", Session)
    monkeypatch.setattr(pool.state, "ending", [])
    monkeypatch.setattr(pool, "load", lambda words: (words.made, ()))
    monkeypatch.setattr(FunctionPool, "AGAIN_S", 0.0)
    with mock.patch.object(threading.Thread, "start"):  # the test calls what the pool's thread would
        return FunctionPool()


@pytest.fixture
def actor_ownership(monkeypatch):
    """ActorOwnership without its thread; ``told`` has the actors without a handle elsewhere, ``watched`` the others."""
    out = ActorOwnership()
    out.told, out.watched = [], []
    monkeypatch.setattr(out, "begin", lambda: None)
    monkeypatch.setattr(out, "put", lambda gone: out.told.append(gone[1]))
    monkeypatch.setattr(out, "_watch", lambda _, made: out.watched.append(made.id))
    monkeypatch.setattr(pool, "actor_ownership", out)
    return out


def leaves(pools, worker, *made, within=1000.0):
    words = Words(*made)
    pools._leaving.append(_Leaving(worker, words, time.monotonic() + within))
    return words


def test_a_kill_is_repeated_until_the_head_is_back(pools):
    pools.session.away = True
    pools.condemn(["a", "b"])
    for _ in range(3):
        pools.see_off()
    assert pools.session.done == []
    pools.session.away = False
    pools.see_off()
    assert sorted(pools.session.done) == ["kill a", "kill b"]
    pools.see_off()
    assert len(pools.session.done) == 2


def test_requests_to_an_absent_head_are_spaced_out(pools, monkeypatch):
    monkeypatch.setattr(FunctionPool, "AGAIN_S", 1e6)
    pools.session.away = True
    pools.condemn(["a", "b"])
    for _ in range(3):
        pools.see_off()
    assert pools.session.asked == 1


def test_workers_unknown_to_the_head_are_finished(pools):
    pools.session.unknown = {"a"}
    pools.condemn(["a", "b"])
    pools.see_off()
    assert pools.session.done == ["kill b"]
    assert pools._leaving == []


def test_a_worker_that_cannot_be_ended_does_not_block_others(pools, monkeypatch):
    def kill(worker):
        if worker == "a":
            raise Unavailable("of this one it hears nothing", reason="DeadlineExceeded")
        pools.session.done.append(worker)

    monkeypatch.setattr(pools.session, "kill", kill)
    pools.condemn(["a", "b"])
    for _ in range(2):
        pools.see_off()
    assert pools.session.done == ["b"]
    assert [leaving.worker for leaving in pools._leaving] == ["a"]


def test_a_workers_actors_are_taken_over_once_despite_an_absent_head(pools, actor_ownership):
    words = leaves(pools, "w", _Owned("a", "A", False), _Owned("b", "B", True, ("object", "place")), _Owned("gone", "C", False))
    pools.session.unknown = {"gone"}
    pools.see_off()
    assert pools.session.asked == 0  # the hand-over is not ready yet
    words._ref.ready = True
    know = pools.session.know

    def not_b(actor, name):
        pools.session.away = actor == "b"
        know(actor, name)

    pools.session.know = not_b
    pools.see_off()
    assert pools.session.done == ["know a"]
    pools.session.know, pools.session.away = know, False
    retire, pools.session.retire = pools.session.retire, lambda worker: 1 / 0
    pools.see_off()
    assert [leaving.worker for leaving in pools._leaving] == ["w"]
    pools.session.retire = retire
    pools.see_off()
    assert pools.session.done == ["know a", "know b", "retire w"]
    assert (actor_ownership.told, actor_ownership.watched) == (["a"], ["b"])
    assert set(actor_ownership._owned) == {"a", "b"}
    assert actor_ownership._kept == {"b": [words._ref]}
    assert words.published
    assert pools._leaving == []


def test_a_silent_worker_is_killed_without_takeover(pools, actor_ownership):
    leaves(pools, "w", _Owned("a", "A", False), within=0.0)
    pools.see_off()
    assert pools.session.done == ["kill w"]
    assert actor_ownership._owned == {}


class Wanting:
    """A native pool with one request."""

    def __init__(self, **wants):
        self.wants, self.answers = wants, []

    def take_wants(self, _):
        wants, self.wants = self.wants, {}
        return SimpleNamespace(**{"workers": 0, "empty": False, "ended": [], "condemned": [], "raised": [], **wants})

    def judged(self, task, again):
        self.answers.append((task, again))


def test_a_hand_over_loses_nothing_that_a_pool_wanted_meanwhile(pools):
    pool = object.__new__(_Pool)

    def judgement(task, function):
        return SimpleNamespace(id=task, function=function, raised=None)

    pool.native = Wanting(condemned=["forced"], ended=["unmade"], raised=[judgement(7, 1), judgement(8, 2)])
    pool.judges = {1: Retries.from_options(3, True), 2: Retries.from_options(3, False)}
    pool.workers = {who: SimpleNamespace(_ref=SimpleNamespace(ready=False)) for who in ("unmade", "busy")}
    pools._pools["one"] = pool
    assert pools.hand_over(time.monotonic() + 1000.0)
    assert pool.native.answers == [(7, True), (8, False)]
    assert sorted(pools.session.done) == ["kill forced", "kill unmade"]


def test_this_process_is_needed_until_a_worker_handed_over(pools, monkeypatch):
    words = leaves(pools, "w")
    pools.session.wait_some = lambda *_: None
    monkeypatch.setattr(pool, "wait_lending", lambda *_: None)
    assert not pools.idle()
    assert not pools.hand_over(time.monotonic() + 0.01)
    words._ref.ready = True
    assert pools.hand_over(time.monotonic() + 1000.0)
    assert pools.idle()


def test_a_needed_worker_is_asked_again(pools, monkeypatch):
    words, again = leaves(pools, "w"), []
    words.made, words._ref.ready = None, True
    monkeypatch.setattr(pool, "load", lambda words: words.made if words.made is None else (words.made, ()))
    monkeypatch.setattr(FunctionPool, "request_report", lambda _, leaving: again.append(leaving.worker))
    for _ in range(2):
        pools.see_off()
    assert again == ["w", "w"]
    assert pools._leaving[0].needed
    assert pools.session.done == []


def test_suspended_time_does_not_count(pools):
    leaves(pools, "w", within=0.0)
    pools._checked_at -= 100.0
    pools.see_off()
    assert pools.session.done == []


def test_a_function_can_be_called_while_its_pool_starts(pools, monkeypatch):
    """As when the garbage collector runs user code at that point."""
    function = SimpleNamespace(resources={"CPU": 1.0}, placed=({}, {}, None), name="f", retries=Retries.from_options(0, False), pool=None)
    found = []

    class Begins:
        def __init__(self, _, number, *__):
            self.number, self.workers, self.judges, self.native = number, {}, {}, None

        def begin(self, *_):
            if not found:
                found.append(None)
                found[0] = pools._pool_of(function)

    monkeypatch.setattr(pool, "_Pool", Begins)
    calls = threading.Thread(target=lambda: found.append(pools._pool_of(function)), daemon=True)
    calls.start()
    calls.join(60)
    assert len(found) == 2
    assert found[0] is found[1] is next(iter(pools._pools.values()))


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_pool_with_workers_is_attended(pools, monkeypatch, begun):
    class Interrupted:
        def __init__(self, _, number, *__):
            self.number, self.workers, self.judges, self.native = number, {}, {}, None

        def begin(self, *_):
            self.workers = {"w": None} if begun else {}
            raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_Pool", Interrupted)
    function = SimpleNamespace(resources={"CPU": 1.0}, placed=({}, {}, None), name="f", retries=Retries.from_options(0, False), pool=None)
    with pytest.raises(KeyboardInterrupt):
        pools._pool_of(function)
    assert len(pools._pools) == len(pools._numbered) == begun
    if begun:
        assert [pool.workers for pool in pools._awake] == [{"w": None}]
        assert pools._pool_of(function).workers == {"w": None}


def test_a_hand_over_waits_for_an_absent_head(pools):
    pools.condemn(["w"])
    asked = []

    def kill(worker):
        asked.append(worker)
        if len(asked) < 3:
            raise Unavailable("the head is away", reason="HeadGone")

    pools.session.kill = kill
    assert pools.hand_over(time.monotonic() + 1000.0)
    assert asked == ["w", "w", "w"]
    assert pools._leaving == []
