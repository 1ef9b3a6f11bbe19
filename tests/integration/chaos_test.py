"""``shoal chaos``: faults from a seed under a training that goes on."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from launching.leftovers import wait_until

from shoal.exceptions import InvalidArgument
from shoal.train._chaos import __main__ as chaos
from shoal.train._chaos.__main__ import Chaos, Outcome, Total
from shoal.train._chaos.harm import kill_process, stop_process
from shoal.train._chaos.head import living_heads
from shoal.train._chaos.identity import Process, start_time
from shoal.train._chaos.pace import Metronome, Pace
from shoal.train._chaos.plan import Fault, kinds_of, per_second_of, seconds_of, sequence, targets, victim
from shoal.train._chaos.status import Status, Worker

TRAIN = """
import time
import shoal
from shoal.train import ScalingConfig, Trainer, report, run

def step(batch, state):
    x, y = batch
    loss = (state.model(x) - y).square().mean()
    mean = state.mean(loss)
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    time.sleep(0.01)  # leaves processor time to the command
    report({"step": state.step, "loss": mean})

def loop(config):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = torch.nn.Linear(8, 1)
    fully_shard(model)
    state = State(model=model, optimizer=AdamW(model.parameters(), lr=1e-3))
    run(step, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8), state, epochs=1_000_000)

if __name__ == "__main__":
    shoal.init(address="auto")
    reports = []
    scaling = ScalingConfig(BOUNDS, protect=PROTECT)
    Trainer(loop, train_loop_config={}, scaling_config=scaling,
            on_report=lambda m: reports or reports.append(print("it trains", flush=True))).fit()
"""


def train(shoal_command, bounds=(1, 3), protect=True):
    return shoal_command.training(TRAIN.replace("BOUNDS", repr(bounds)).replace("PROTECT", repr(protect)))


def test_a_training_survives_kills_and_stops(shoal_command):
    shoal_command.start(cpus=3)
    driver, job = train(shoal_command)
    said = shoal_command.json("chaos", job, "--seed", "1148", "--rate", "1/s", "--for", "3s")
    expected = sequence(1148, 1.0, 3.0, ("kill", "stop"))
    assert [f.kind for f in expected] == ["kill", "stop", "kill"]
    assert expected[1].hold_s > 4  # a long stop
    assert [f["fault"]["kind"] for f in said["faults"]] == [f.kind for f in expected]
    assert (said["schema"], said["job_id"], said["seed"]) == ("shoal.chaos/1", job, 1148)
    assert (said["injected"], said["survived"], said["steps_lost"]) == (len(expected), len(expected), 0)
    kills = [f for f in said["faults"] if f["fault"]["kind"] == "kill"]
    assert all(f["pause_s"] > 0 for f in said["faults"])
    for worker in (f["worker"] for f in kills):
        assert f"worker {worker} died" in driver.err
    assert [r["name"] for r in shoal_command.rows("jobs")] == ["driver0.py"]  # the command is no job
    driver.signal(signal.SIGTERM)
    driver.code()
    over = shoal_command("chaos", job, "--seed", "5", "--for", "1s")
    assert over.returncode == 1
    assert "has no workers any more" in over.stderr
    assert shoal_command("stop").returncode == 0


def test_a_training_survives_deaths_of_the_head(shoal_command):
    cluster = shoal_command.start(cpus=3)
    driver, job = train(shoal_command)
    head, *words = cluster.pid("head"), "chaos", job, "--seed", "1557", "--rate", "1/s", "--for", "3s"
    said = shoal_command.json(*words, "--faults", "kill,head")
    kinds = [f.kind for f in sequence(1557, 1.0, 3.0, ("kill", "head"))]
    assert kinds == ["head", "kill", "head"]
    assert [(f["fault"]["kind"], f["worker"] is None) for f in said["faults"]] == [(kind, kind == "head") for kind in kinds]
    assert (said["injected"], said["survived"], said["steps_lost"]) == (len(kinds), len(kinds), 0)
    assert cluster.pid("head") != head
    driver.signal(signal.SIGTERM)
    driver.code()
    assert shoal_command("stop").returncode == 0


def test_chaos_refuses_the_death_of_a_head_inside_a_program(shoal_command):
    driver = shoal_command.driver(TRAIN.replace("BOUNDS", "(1, 2)").replace("PROTECT", "True").replace('"auto"', '"local", num_cpus=2'))
    driver.said("it trains")
    (session,) = {p.parent.parent for p in shoal_command.home.glob("*/pids/local.*")}
    address = json.loads((session / "info.json").read_text())["head"]
    (job,) = (r["id"] for r in shoal_command.rows("jobs", "--address", address) if r["state"] == "RUNNING")
    refused = shoal_command("chaos", job, "--address", address, "--seed", "1", "--rate", "5/s", "--faults", "head")
    assert refused.returncode == 1
    assert "the head of this cluster runs inside a program, and nothing would start it again" in refused.stderr
    driver.signal(signal.SIGTERM)
    driver.code()


def test_chaos_refuses_a_training_that_would_not_survive(shoal_command):
    shoal_command.start(cpus=3)
    driver, job = train(shoal_command, protect=False)
    refused = shoal_command("chaos", job, "--seed", "1", "--for", "1s")
    assert refused.returncode == 1
    assert f"job {job} does not survive the death of a worker" in refused.stderr
    assert "leave out protect=False" in refused.stderr
    for words, text in (("--rate", "4"), "no rate"), (("--for", "soon"), "no length of time"), (("--faults", "fire"), "no fault 'fire'"):
        wrong = shoal_command("chaos", job, "--seed", "1", *words)
        assert wrong.returncode == 2
        assert text in wrong.stderr
    ends = shoal_command("chaos", job, "--seed", "1", "--rate", "5/s", "--for", "5s", "--faults", "kill", "--yes")
    assert ends.returncode == 1
    assert "the training did not go on" in ends.stdout
    planned = len(sequence(1, 5.0, 5.0, ("kill",)))
    assert f"injected 1 of {planned} planned faults, survived 0" in ends.stdout
    assert driver.code() != 0
    for words, text in (("--rate", "fast"), "no rate"), (("--faults", "kil"), "no fault 'kil'"):
        wrong = shoal_command("chaos", job, "--seed", "1", *words)
        assert (wrong.returncode, text in wrong.stderr) == (2, True), wrong  # before the state of the job, which has ended
    assert shoal_command("stop").returncode == 0


FIXED = """
import time
import shoal
from shoal.train import ScalingConfig, Trainer, report

def loop(config):
    while True:
        time.sleep(0.01)  # leaves processor time to the command
        report({})

if __name__ == "__main__":
    shoal.init(address="auto")
    reports = []
    Trainer(loop, train_loop_config={}, scaling_config=ScalingConfig(2),
            on_report=lambda m: reports or reports.append(print("it trains", flush=True))).fit()
"""


def test_chaos_ends_a_training_of_fixed_size_only_if_asked(shoal_command):
    shoal_command.start(cpus=3)
    driver, job = shoal_command.training(FIXED)
    words = ("chaos", job, "--seed", "1", "--rate", "5/s", "--for", "5s", "--faults", "kill")
    refused = shoal_command(*words)
    assert (refused.returncode, "ScalingConfig(num_workers=(minimum, maximum))" in refused.stderr) == (1, True), refused
    ended = shoal_command(*words, "--yes")
    planned = len(sequence(1, 5.0, 5.0, ("kill",)))
    assert ended.returncode == 1
    assert f"injected 1 of {planned} planned faults, survived 0" in ended.stdout, ended
    assert driver.code() == 1
    assert "ActorDied" in driver.err
    (row,) = shoal_command.rows("jobs")
    assert (row["state"], row["exit_code"]) == ("FAILED", 1)
    assert "its program failed: " in row["cause"]["message"]
    assert shoal_command("stop").returncode == 0


def test_chaos_refuses_a_cluster_with_other_jobs(shoal_command):
    shoal_command.start(cpus=3)
    driver, job = train(shoal_command, (1, 2))
    other = shoal_command.driver("""
        import shoal, sys
        shoal.init(address="auto")
        print("idle")
        while True:
            shoal.wait([], timeout=1)
        """)
    other.said("idle")
    refused = shoal_command("chaos", job, "--seed", "1", "--for", "1s")
    assert refused.returncode == 1
    assert "the cluster has other jobs: driver1.py" in refused.stderr
    for running in (driver, other):
        running.signal(signal.SIGTERM)
        running.code()
    assert shoal_command("stop").returncode == 0


def test_a_seed_decides_kinds_places_and_times():
    one = sequence(1, 0.1, 600, ("kill", "stop"))
    assert one == sequence(1, 0.1, 600, ("kill", "stop")) != sequence(2, 0.1, 600, ("kill", "stop"))
    assert 30 < len(one) < 90
    assert all(a.at_s < b.at_s < 600 for a, b in itertools.pairwise(one))


def test_a_victim_has_a_worker_that_takes_over_its_part():
    workers = tuple(Worker(n, node, Process(n, n)) for n, node in enumerate("aab"))
    assert [w.number for w in targets(Status(1, True, True, True, workers), "kill")] == [0, 1, 2]
    alone = Status(1, True, True, False, workers)  # without replicas worker 2 has no other one beside it
    assert [w.number for w in targets(alone, "kill")] == [0, 1]
    assert [w.number for w in targets(alone, "stop")] == [0, 1, 2]
    assert victim(alone, Fault(0.0, "kill", 0.99)).number == 1
    assert victim(Status(1, True, True, True, workers[:1]), Fault(0.0, "kill", 0.5)) is None
    assert victim(Status(1, True, False, False, workers[:1]), Fault(0.0, "kill", 0.5)).number == 0  # nothing survives without protection


def test_the_last_line_has_the_planned_faults_that_did_not_come():
    faults = [Fault(0.0, "kill", 0.5)] * 3
    hit, skipped = Outcome(faults[0], 0.0, 1, True), Outcome(faults[0], 0.0, None, True, skipped=True)
    assert (str(Total.count(faults, [hit] * 3)), Total.count(faults, [hit] * 3).passed) == ("injected 3, survived 3, steps lost 0", True)
    some = Total.count(faults, [hit, skipped])
    assert (str(some), some.passed) == ("injected 1 of 3 planned faults, survived 1, steps lost 0", True)
    assert not Total.count(faults, [skipped]).passed
    assert not Total.count(faults, []).passed


class Scripted(Chaos):
    """Inflicts faults on a training of which it sees these states, one after the other; the last one stays. Its waits take no time."""

    def __init__(self, *states):
        self._states, self._began, self._pause, self.now = list(states), 0.0, self, 0.0

    def status(self):
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def wait(self, seconds):
        self.now += seconds

    def monotonic(self):
        return self.now


def seen(generation, steady=True, **more):
    return Status(generation, steady, True, True, tuple(Worker(n, "a", Process(n, n)) for n in range(2)), **more)


KILL, STOP = Fault(0.0, "kill", 0.0), Fault(0.0, "stop", 0.0, 0.1)
BEFORE = seen(1, reports=5)


@pytest.mark.parametrize(
    ("fault", "states", "survived", "steps_lost"),
    [
        (KILL, [BEFORE, BEFORE, seen(1, False), seen(2, died=frozenset((0,)), pause_s=0.5, undone=2)], True, 2),
        (KILL, [BEFORE, BEFORE, seen(1, False)], False, 0),
        (KILL, [BEFORE, BEFORE], False, 0),  # the worker is not dead
        (STOP, [BEFORE, BEFORE, BEFORE, seen(1, reports=6, undone=9)], True, 0),  # undone in an earlier change
        (STOP, [BEFORE, BEFORE, BEFORE, seen(2, reports=6, undone=1)], True, 1),
        (STOP, [BEFORE, BEFORE, BEFORE], True, 0),  # it reports seldom
        (STOP, [BEFORE, BEFORE, seen(1, False)], False, 0),
    ],
)
def test_a_training_has_survived_a_fault_once_all_workers_train_again(monkeypatch, fault, states, survived, steps_lost):
    scripted, said = Scripted(*states), []
    monkeypatch.setattr(chaos, "time", scripted)
    monkeypatch.setattr(chaos, "on_node", lambda function, node: SimpleNamespace(remote=lambda *_: True))
    monkeypatch.setattr(chaos, "get", lambda answer, timeout: answer)
    (outcome,) = chaos.run(scripted, [fault] if survived else [fault, fault], said.append)
    assert (outcome.survived, outcome.steps_lost, outcome.worker) == (survived, steps_lost, 0)
    assert len(said) == 1
    assert Total.count([fault], [outcome]).passed == (survived and not steps_lost)


@pytest.mark.parametrize(("longest", "pause_s"), [(((90.0, 7.0), (101.0, 0.75), (102.0, 0.25)), 0.5), (((90.0, 7.0), (101.0, 0.2)), 0.0)])
def test_the_pause_is_the_trainings_own_and_not_the_commands(monkeypatch, longest, pause_s):
    before = seen(1, reports=5, pace=Pace(now=100.0, usual=0.25, longest=((90.0, 7.0),)))
    after = seen(1, reports=7, pace=Pace(now=110.0, usual=0.3, longest=longest))
    scripted = Scripted(before, before, after)
    monkeypatch.setattr(chaos, "time", scripted)
    monkeypatch.setattr(chaos, "kill_head", lambda: scripted.wait(4.0))  # until another one runs
    assert scripted.inflict(Fault(0.0, "head", 0.0)).pause_s == pause_s


def test_a_pause_is_the_longest_interval_between_reports_beyond_the_usual_one():
    clock = SimpleNamespace(now=0.0)
    metronome = Metronome(lambda: clock.now)

    def report(*intervals):
        for interval in intervals:
            clock.now += interval
            metronome.report()
        return metronome.pace

    assert report().pause_since(Pace()) is None
    assert report(9.0).pause_since(Pace()) is None
    before = report(1.0, 4.0, 1.0, 1.0)
    assert before.usual == 1.0
    assert before.pause_since(before) is None  # no report has come since
    assert report(1.0).pause_since(before) == 0.0
    assert report(3.0, 1.0, 2.0, 1.0).pause_since(before) == 2.0
    assert "pause unknown" in str(Outcome(STOP, 1.0, 0, True, pause_s=None))


def test_a_seed_without_a_fault_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(chaos, "open_session", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(chaos, "Chaos", lambda *_: SimpleNamespace(check=lambda *_: None))
    monkeypatch.setattr(sys, "argv", ["chaos", "address", "job", "1", "1/h", "1s", "kill"])
    assert chaos.main() == 1
    assert "seed 1 has no fault within 1s at 1/h" in capsys.readouterr().err


@pytest.fixture
def bystander():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_signal_goes_to_the_process_that_was_meant(bystander):
    reused = Process(bystander.pid, start_time(bystander.pid) - 1)  # another process had this pid before
    assert not kill_process(reused)
    assert not stop_process(reused, 1000.0)
    assert bystander.poll() is None
    assert not kill_process(Process(bystander.pid, 0))
    living = Process.with_pid(bystander.pid)
    assert kill_process(living)
    os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
    assert not kill_process(living)  # it has ended, and its parent has not asked for that yet
    assert bystander.wait() == -signal.SIGKILL
    assert not kill_process(living)


def test_a_stopped_process_goes_on_although_the_one_that_stopped_it_dies(bystander):
    code = "import sys; from shoal.train._chaos.harm import Process, stop_process; stop_process(Process(*map(int, sys.argv[1:])), 2.0)"
    victim = Process.with_pid(bystander.pid)
    words = [sys.executable, "-c", code, str(victim.pid), str(victim.started)]
    with subprocess.Popen(words, start_new_session=True) as other:
        wait_until(lambda: os.waitid(os.P_PID, victim.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG), 60, "the stop")
        os.killpg(other.pid, signal.SIGKILL)  # as the node ends a worker
    wait_until(lambda: os.waitid(os.P_PID, victim.pid, os.WCONTINUED | os.WNOWAIT | os.WNOHANG), 60, "the end of the stop")


def test_a_file_of_a_head_that_was_killed_names_no_process(tmp_path):
    (tmp_path / f"head.{os.getpid()}").write_text(str(start_time(os.getpid()) - 1))
    (tmp_path / f"head.{os.getppid()}").write_text("")
    assert living_heads(Path(tmp_path)) == []
    (tmp_path / f"head.{os.getpid()}").write_text(str(start_time(os.getpid())))
    assert living_heads(Path(tmp_path)) == [Process.with_pid(os.getpid())]


def test_rates_times_and_kinds_are_read():
    assert (per_second_of("6/min"), per_second_of("2/s"), seconds_of("10m"), seconds_of("90"), seconds_of("1h")) == (0.1, 2, 600, 90, 3600)
    assert kinds_of("stop,kill") == ("stop", "kill")
    for read, wrong in (per_second_of, "0/s"), (per_second_of, "4 per minute"), (seconds_of, "-1s"), (kinds_of, "kill,oom"):
        with pytest.raises(InvalidArgument):
            read(wrong)
