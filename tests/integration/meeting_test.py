"""The store of a training's process group: calls by torch's C++ from another thread, and the loss of the host that it lies on."""

import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from internals.train import AbortOnDeath, Watches
from launching.hosts import several_hosts
from launching.leftovers import wait_until

from shoal.exceptions import Unavailable
from shoal.train._meeting import GuardedStore
from shoal.train._sockets import open_fds, peer_of

LIMIT_S = 120  # hang guard; the kernel gives up an unanswered request after a quarter of an hour

SERVE = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore(sys.argv[1], 0, is_master=True, wait_for_workers=False)
print(f"port {store.port}", flush=True)
time.sleep(3600)
"""

WAIT = """
import os, sys
from datetime import timedelta
from shoal.exceptions import Unavailable
from shoal.train import _meeting

class Guard:
    def check(self):
        if os.path.exists(sys.argv[3]):
            raise Unavailable("a worker has died")

guard, day = Guard(), timedelta(days=1)
store = _meeting.GuardedStore(_meeting._reach((sys.argv[1], int(sys.argv[2])), guard, day), guard)
assert not store.check(["never"])
print("it waits", flush=True)
try:
    store.wait(["never"], day)
except Unavailable:
    print("it goes on", flush=True)
"""


class Guard:
    def __init__(self):
        self.dead = threading.Event()

    def check(self):
        if self.dead.is_set():
            raise Unavailable("a worker has died")


@pytest.fixture
def server():
    argv = [sys.executable, "-c", SERVE, "127.0.0.1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        process.port = int(process.stdout.readline().split()[1])
        yield process
        process.kill()


@pytest.fixture
def store(server):
    return GuardedStore(dist.TCPStore("127.0.0.1", server.port, is_master=False), Guard())


class Caller(threading.Thread):
    """Calls a store as torch's C++ does, without the GIL, in a thread of its own."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self._call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error

    def ended(self):
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self


def test_torch_calls_each_method_from_another_thread(store):
    inner = dist.PrefixStore("inner", dist.PrefixStore("outer", store))

    def calls():
        before = inner.num_keys()
        inner.set("a", "1")
        yield inner.check(["a"]), inner.check(["b"]), inner.get("a"), inner.add("n", 2), inner.add("n", 3)
        yield inner.compare_set("a", "1", "2"), inner.multi_get(["a", "n"])
        inner.append("a", "3")
        yield inner.get("a"), inner.num_keys() - before, inner.delete_key("a"), inner.check(["a"])
        inner.wait(["n"], timedelta(seconds=LIMIT_S))

    caller = Caller(lambda: list(calls())).ended()
    assert caller.error is None
    assert caller.result == [(True, False, b"1", 2, 5), (b"2", [b"2", b"5"]), (b"23", 2, True, False)]


def test_a_clone_lives_as_long_as_the_store_and_follows_its_guard(store):
    clone = dist.PrefixStore("p", store).clone()
    clone.set("a", "1")
    assert dist.PrefixStore("p", store).get("a") == b"1"
    store.guard = Guard()
    waits = Caller(lambda: clone.wait(["never"], timedelta(days=1)))
    store.guard.dead.set()
    assert "a worker has died" in str(waits.ended().error)


def test_a_wait_of_torch_in_another_thread_ends_with_a_death_and_holds_no_gil(store):
    outer = dist.PrefixStore("p", store)
    waits = Caller(lambda: outer.wait(["never"], timedelta(days=1)))
    polls = Caller(lambda: [outer.check(["never"]) for _ in range(100)])
    assert polls.ended().result == [False] * 100  # beside this thread and the one that waits
    store.guard.dead.set()
    assert "a worker has died" in str(waits.ended().error)
    for call in (lambda: outer.check(["never"]), lambda: outer.get("never")):
        assert "a worker has died" in str(Caller(call).ended().error)
    outer.set("a", "1")
    assert outer.check(["a"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_kernel_ends_a_silent_connection_to_a_store_and_no_other_socket_changes(host):
    """The program's limit for its own new connections is none of sockets that are there."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore(host, server.port, is_master=False)
    ours, theirs = socket.socketpair()
    blocking = {fd: os.get_blocking(fd) for fd in open_fds() if peer_of(fd) or fd in (ours.fileno(), theirs.fileno())}
    socket.setdefaulttimeout(30)
    try:
        store = GuardedStore(client, Guard())
    finally:
        socket.setdefaulttimeout(None)
    assert {fd: os.get_blocking(fd) for fd in blocking} == blocking
    limits = {}
    for fd in (fd for fd in blocking if peer_of(fd)):
        connection = socket.socket(fileno=os.dup(fd))
        limits[peer_of(fd)[1] == server.port] = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        connection.close()
    assert limits == {True: 8000, False: 0}  # False: the server's end of the connection
    assert not store.check(["never"])
    for end in (ours, theirs):
        end.close()


def test_a_lost_store_leaves_the_decision_to_the_guard(server, store):
    waits = Caller(lambda: store.wait(["never"], timedelta(days=1)))
    server.send_signal(signal.SIGKILL)
    server.wait()
    wait_until(lambda: store._lost is not None, LIMIT_S, "the end of the connection")
    assert waits.is_alive()
    assert not store.check(["never"])
    store.guard.dead.set()
    assert isinstance(waits.ended().error, Unavailable)


def test_without_news_of_a_death_the_connections_error_counts(server, store, monkeypatch):
    server.kill()
    server.wait()
    monkeypatch.setattr("shoal.train._meeting._DOUBT_S", -1.0)
    with pytest.raises(dist.DistNetworkError):
        store.wait(["never"], timedelta(days=1))


def test_a_store_behind_a_cut_link_leaves_the_decision_to_the_guard(tmp_path):
    for hosts in several_hosts(2, network="10.78.9"):
        a, b, dead = hosts.a, hosts.b, tmp_path / "dead"
        serves = a.program([sys.executable, "-c", SERVE, a.address])
        wait_until(lambda: serves.out.endswith("\n"), LIMIT_S, "the store listens")  # noqa: B023
        waits = b.program([sys.executable, "-c", WAIT, a.address, serves.out.split()[1], str(dead)])
        waits.said("it waits", LIMIT_S)
        hosts.cut(a)
        dead.touch()
        assert waits.code(LIMIT_S) == 0, waits.err
        assert "it goes on" in waits.out
        os.kill(serves.pid, signal.SIGKILL)
        serves.code()


class Group:
    """A group of devices that counts the calls to it."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def __getattr__(self, call):
        return lambda: self.calls.append((self.name, call))


def test_a_death_aborts_all_groups_of_devices_together():
    calls = []
    watch = AbortOnDeath(lambda: 0, lambda: calls.append("before"), lambda: [Group("second", calls), Group("first", calls)])
    watch._thread.join()
    assert calls == ["before", ("second", "_group_start"), ("second", "abort"), ("first", "abort"), ("second", "_group_end")]


def test_a_death_behind_the_end_of_the_groups_aborts_none():
    dead, calls = threading.Event(), []
    watch = AbortOnDeath(dead.wait, list, lambda: [Group("the next generation's", calls)])
    watch.end()
    dead.set()
    watch._thread.join()
    assert calls == []


def test_a_watch_whose_call_fails_aborts_none():
    def fails():
        raise Unavailable("the driver has ended")

    calls = []
    AbortOnDeath(fails, list, lambda: [Group("a group in use", calls)])._thread.join()
    assert calls == []


def test_a_watch_that_another_one_replaces_aborts_none():
    answers, calls = {}, []
    watches = Watches(set(), lambda call, answer: (answers.update({call: answer}), call.set()))
    call = threading.Event()
    watches.add(call, 1, (0, 2))
    watch = AbortOnDeath(lambda: (call.wait(), answers[call])[1], list, lambda: [Group("a group in use", calls)])
    watches.add(threading.Event(), 1, (0,))  # the worker asks again, for the next generation
    watch._thread.join()
    assert calls == []
