"""A driver's end, in order or by force, without leftovers of its cluster."""

import os
import signal
import sys
import time

import pytest
from launching.actors import Log
from launching.commands import BEGIN, pids_in
from launching.leftovers import alive, descendants, gone, stat_of, stop_cluster_of, wait_until

import shoal
from shoal.exceptions import ActorDiedError, Unavailable


@pytest.fixture(autouse=True)
def session(home):
    yield
    shoal.shutdown()


@pytest.mark.parametrize("closed", ["0", "12", "012"])
def test_a_driver_without_standard_streams_works(shoal_command, tmp_path, closed):
    out = tmp_path / "out"
    driver = shoal_command.driver(
        BEGIN
        + f"""
said = os.dup2(os.open({str(out)!r}, os.O_WRONLY | os.O_CREAT), 50)
os.closerange(3, 50)
for number in {closed!r}:
    os.close(int(number))
try:
    shoal.init(num_cpus=1)
    a = Log.remote()
    shoal.get(a.say.remote("something"))
    os.write(said, b"a value")
except BaseException as error:
    os.write(said, repr(error).encode())
"""
    )
    assert (driver.code(), out.read_text()) == (0, "a value")


def test_an_ended_driver_leaves_nothing_and_loses_no_line(shoal_command):
    driver = shoal_command.driver(
        BEGIN
        + """
        shoal.init(num_cpus=2)
        a = Log.remote()
        for i in range(200):
            last = a.say.remote(f"line {i}.")
        shoal.get(last)

        @shoal.remote
        def unfinished():
            os.write(1, b"no newline")

        shoal.get(unfinished.remote())
        """.replace("\n        ", "\n")
    )
    assert driver.code() == 0, driver.err
    assert ") no newline\n" in driver.out
    for text in (driver.out, driver.err):
        lines = [line.partition(") ")[2] for line in text.splitlines() if line.startswith("(Log pid=")]
        assert lines == [f"line {i}." for i in range(200)]


@pytest.mark.parametrize(
    ("last_line", "code"),
    [("raise ValueError('mine')", 1), ("sys.exit(5)", 5), ("os._exit(6)", 6), ("os.kill(os.getpid(), signal.SIGSEGV)", -11)],
)
def test_a_driver_keeps_its_exit_code_for_every_kind_of_end(shoal_command, last_line, code):
    driver = shoal_command.driver(
        BEGIN + f"shoal.init(num_cpus=2)\na = Log.remote()\nprint('pids', shoal.get(a.pid.remote()))\n{last_line}\n"
    )
    pids = pids_in(driver)
    assert driver.code() == code, driver.err
    gone(pids)


@pytest.mark.parametrize(
    ("last_line", "state", "code", "why"),
    [
        ("raise ValueError('mine')", "FAILED", 1, "its program failed: ValueError: mine"),
        ("sys.exit(3)", "SUCCEEDED", None, None),  # Python shows it to no exit handler, so the code is unknown
        ("pass", "SUCCEEDED", None, None),
    ],
)
def test_a_job_has_the_outcome_that_its_driver_knows(shoal_command, last_line, state, code, why):
    shoal_command.start()
    driver = shoal_command.driver(BEGIN + f"shoal.init('auto')\n{last_line}\n")
    driver.code()
    (row,) = shoal_command.rows("jobs")
    assert (row["state"], row["exit_code"], row["cause"] and row["cause"]["message"]) == (state, code, why)
    columns = shoal_command("list", "jobs").stdout.splitlines()[1].split()
    assert columns[columns.index(state) + 2] == ("-" if code is None else str(code)), columns
    assert shoal_command("stop").returncode == 0


BLOCKED = (
    BEGIN
    + """
shoal.init(num_cpus=2)
a = Log.remote()
print("pids", shoal.get(a.pid.remote()), *shoal.get(a.fork_sleepers.remote(1)))
shoal.get(a.sleep.remote(1000))
"""
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_ends_a_waiting_driver_and_its_cluster(shoal_command, number):
    driver = shoal_command.driver(BLOCKED)
    pids = [*pids_in(driver), *descendants(driver.pid)]
    driver.signal(number)
    assert driver.code() == -number
    gone(pids)
    if number == signal.SIGINT:
        assert driver.err.rstrip().endswith("KeyboardInterrupt")


def test_a_driver_ends_while_its_threads_run_native_code(shoal_command):
    driver = shoal_command.driver(
        BEGIN
        + """
import threading
from internals.core import _native

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)  # the interpreter ends, and other threads ask for the GIL

def add():
    sum, data = _native.Checksum(), bytes(1 << 20)
    began.release()
    while True:
        sum.update(data)

last, began = Last(), threading.Semaphore(0)
for _ in range(4):
    threading.Thread(target=add, daemon=True).start()
    began.acquire()
"""
    )
    assert (driver.code(), driver.err) == (0, "")


def test_an_exit_handler_that_runs_after_shoals_joins_no_cluster(shoal_command):
    driver = shoal_command.driver(
        """
import atexit

def late():
    try:
        print(shoal.nodes())
    except shoal.exceptions.Unavailable as error:
        print(error)

atexit.register(late)
"""
        + BEGIN
        + "shoal.init(num_cpus=1)\nassert len(shoal.nodes()) == 1\n"
    )
    assert (driver.code(), driver.out) == (0, "this process is ending and has left its cluster\n"), driver.err


STUBBORN = (
    BEGIN
    + """
@shoal.remote
class Stubborn:
    def ignore(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        return os.getpid()

    def sleep(self):
        while True:
            time.sleep(1000)

shoal.init(num_cpus=2)
a = Stubborn.remote()
print("pids", shoal.get(a.ignore.remote()))
shoal.get(a.sleep.remote())
"""
)


def test_a_second_ctrl_c_ends_a_frozen_cluster(shoal_command):
    driver = shoal_command.driver(STUBBORN)
    pids = [*pids_in(driver), *descendants(driver.pid)]
    stop_cluster_of(driver)  # a frozen cluster does not answer, so that the first Ctrl-C takes long
    driver.signal(signal.SIGINT)
    driver.said("KeyboardInterrupt")
    time.sleep(0.3)
    assert driver.process.poll() is None
    driver.signal(signal.SIGINT)
    driver.code()
    assert "atexit callback" in driver.err  # the second Ctrl-C interrupted an exit handler
    gone(pids)


def test_a_worker_that_ignores_sigterm_is_killed(shoal_command):
    driver = shoal_command.driver(STUBBORN)
    pids = pids_in(driver)
    driver.signal(signal.SIGINT)
    driver.code()
    gone(pids)


def test_forked_children_of_a_driver_exit_freely(shoal_command):
    driver = shoal_command.driver(
        BEGIN
        + """
shoal.init(num_cpus=2)
a = Log.remote()
shoal.get(a.echo.remote(1))
ways = [lambda: sys.exit(0), lambda: os._exit(0), lambda: 1 / 0, lambda: os.kill(os.getpid(), signal.SIGKILL), shoal.shutdown]
for way in ways:
    pid = os.fork()
    if pid == 0:
        way()
        sys.exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert shoal.get(a.echo.remote(pid)) == pid
print("the parent goes on")
"""
    )
    assert driver.code() == 0, driver.err
    assert [line for line in driver.out.splitlines() if line.startswith("child")] == [f"child {c}" for c in (0, 0, 1, -9, 7)]
    assert driver.out.endswith("the parent goes on\n")


def test_a_child_that_outlives_its_driver_keeps_no_cluster_alive(shoal_command):
    driver = shoal_command.driver(
        BEGIN
        + """
shoal.init(num_cpus=2)
a = Log.remote()
worker = shoal.get(a.pid.remote())
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(1000)
print("pids", worker, shoal._core.process.state.cluster.pid, child)
"""
    )
    *cluster, child = pids_in(driver)
    assert driver.code() == 0
    gone(cluster)
    assert alive(child)
    os.kill(child, signal.SIGKILL)


def test_sigkill_of_the_embedded_cluster_fails_waiting_calls():
    shoal.init(num_cpus=2)
    cluster = shoal._core.process.state.cluster.pid
    actor = Log.remote()
    pids = [shoal.get(actor.pid.remote()), *shoal.get(actor.fork_sleepers.remote(2))]
    ref = actor.sleep.remote(1000)
    os.kill(cluster, signal.SIGKILL)
    with pytest.raises(ActorDiedError):
        shoal.get(ref, timeout=60)
    for call in (
        lambda: shoal.nodes(),
        lambda: Log.remote(),
        lambda: shoal.kill(actor),
        lambda: shoal.get(actor.echo.remote(1), timeout=60),
    ):
        with pytest.raises(Unavailable, check=lambda e: e.reason in ("ActorDied", "HeadGone", "NodeGone")):
            call()
    gone(pids)
    shoal.shutdown()
    shoal.init(num_cpus=2)
    assert shoal.get(Log.remote().echo.remote(1)) == 1


def test_an_endlessly_printing_worker_blocks_no_other(shoal_command):
    driver = shoal_command.driver(
        BEGIN
        + """
@shoal.remote
class Loud:
    def shout(self):
        while True:
            print("x" * 500)

shoal.init(num_cpus=2)
loud, quiet = Loud.remote(), Log.remote()
print("pids", shoal.get(quiet.pid.remote()))
shout = loud.shout.remote()
end = time.monotonic() + 2
while time.monotonic() < end:
    assert shoal.get(quiet.echo.remote(1), timeout=60) == 1
    assert shoal.wait([shout], timeout=0) == ([], [shout])
shoal.kill(loud)
try:
    shoal.get(shout, timeout=60)
except shoal.exceptions.ActorDiedError as error:
    print(error)
print("over")
"""
    )
    assert driver.code() == 0, driver.err
    assert "over" in driver.out  # not always the last line: output of the worker may arrive later
    assert "shoal.kill" in driver.out


def test_workers_and_children_end_with_a_killed_node(shoal_command):
    cluster = shoal_command.start()
    shoal.init(cluster.address)
    actor = Log.remote()
    pids = [shoal.get(actor.pid.remote()), *shoal.get(actor.fork_sleepers.remote(2))]
    ref = actor.sleep.remote(1000)
    os.kill(cluster.pid("node"), signal.SIGKILL)
    with pytest.raises(ActorDiedError, match="its node's process ended"):  # not "stopped answering", as for a node that falls silent
        shoal.get(ref, timeout=60)
    gone(pids)
    wait_until(lambda: shoal.nodes()[0]["state"] == "DEAD", 5, "the head to know")
    shoal.shutdown()
    assert shoal_command("stop").returncode == 0


def test_a_node_reaps_orphans_of_its_workers(shoal_command):
    cluster = shoal_command.start()
    shoal.init(cluster.address)
    actor = Log.remote()
    orphans = shoal.get(actor.fork_sleepers.remote(3))
    shoal.kill(actor)
    wait_until(lambda: not any(stat_of(p) for p in orphans), 5, "the funeral")
    shoal.shutdown()
    assert shoal_command("stop").returncode == 0


RANK = """
import sys
import torch
import torch.distributed as dist
from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import State, steps

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
model = torch.nn.Linear(16, 1)
fully_shard(model)
state = State(model=model, optimizer=AdamW(model.parameters(), lr=0.1))
state.itself = state  # the interpreter's end collects it, after the session's
for (x,) in steps(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 16)), batch_size=4), state):
    loss = model(x).mean()
    loss.backward()
    state.optimizer.step()
    state.mean(loss)
dist.destroy_process_group()
print("trained")
"""


def test_memories_that_outlive_the_session_harm_nothing(shoal_command, tmp_path):
    script = shoal_command.script(RANK, "rank.py")
    env = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "165"}  # memory that is freed is overwritten
    ranks = [shoal_command.program([sys.executable, str(script), str(tmp_path / "store"), str(r)], **env) for r in range(2)]
    for rank in ranks:
        assert (rank.code(), rank.out) == (0, "trained\n"), rank.err


USES = """
import gc
import os
import signal
import sys
import torch
import torch.distributed as dist
import shoal
from shoal.fsdp import fully_shard
from shoal.optim import AdamW

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
model = torch.nn.Linear(16, 1)
fully_shard(model)
optimizer = AdamW(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 16)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

train(2)
"""


def run_ranks(shoal_command, tmp_path, text):
    """Runs USES and this text on two ranks. Memory that is freed is overwritten."""
    script = shoal_command.script(USES + text, "rank.py")
    env = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "165", "SHOAL_TIMEOUT": "30"}
    return [shoal_command.program([sys.executable, str(script), str(tmp_path / "store"), str(r)], **env) for r in range(2)]


def test_a_forked_child_drops_its_copy_of_a_sharded_model_and_the_ranks_train_on(shoal_command, tmp_path):
    ranks = run_ranks(
        shoal_command,
        tmp_path,
        """
child = os.fork() if dist.get_rank() == 0 else -1
if child == 0:
    signal.alarm(20)  # ends a child that waits for its parent's threads
    for use in (lambda: model(torch.ones(2, 16)), lambda: model.unshard(), lambda: train(1)):
        try:
            use()
            os._exit(1)
        except shoal.exceptions.Unavailable as error:
            if error.reason != "Forked":
                os._exit(2)
    found = os.open("/dev/null", os.O_RDWR)  # it may get the number of a connection that the child has closed
    del model, optimizer, train, use
    gc.collect()
    os._exit(7)
if child > 0:
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
dist.barrier()
train(3)
dist.destroy_process_group()
print("trained")
""",
    )
    for rank, out in zip(ranks, ("child 7\ntrained\n", "trained\n"), strict=True):
        assert (rank.code(), rank.out) == (0, out), rank.err


def test_an_end_that_is_interrupted_leaves_no_model_that_uses_the_session(shoal_command, tmp_path):
    ranks = run_ranks(
        shoal_command,
        tmp_path,
        """
from internals.core import state

def interrupt():
    raise KeyboardInterrupt  # as Ctrl-C does, before the models are left

dist.barrier()
held = [model]
held.append(held)  # the interpreter's end collects it, after the session's
state.ending.append(interrupt)
dist.destroy_process_group()
print("trained")
""",
    )
    for rank in ranks:
        assert (rank.code(), rank.out) == (0, "trained\n"), rank.err
