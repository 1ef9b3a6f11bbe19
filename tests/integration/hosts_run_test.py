"""``shoal run`` on two hosts, with a scheduler's variables or without."""

import signal

import pytest
from launching.commands import LIMIT_S, Running
from launching.hosts import two_hosts
from launching.leftovers import alive, descendants, wait_until
from running import TRAIN, WAIT, exit_record, losses, run


@pytest.fixture(scope="module")
def hosts():
    yield from two_hosts()


def on_both(hosts, words, variables) -> list[Running]:
    """Starts the command on both hosts, with each one's variables; the second host begins first."""
    return [run(host, *words, **variables[i]) for i, host in reversed(list(enumerate(hosts.all)))][::-1]


@pytest.mark.parametrize("how", ["hosts", "pods"])
def test_two_hosts_train_to_the_losses_of_one(hosts, tmp_path, how):
    script = hosts.a.script(TRAIN, "train.py")
    alone = run(hosts.a, "--nproc", "2", script, "5", SHOAL_FSDP="1")
    assert alone.code() == 5, alone.err
    words = ["--run-folder", tmp_path / "run", "--nproc", "1"]
    fsdp = {"SHOAL_FSDP": "1"}
    if how == "hosts":
        words += ["--hosts", f"{hosts.a.address},{hosts.b.address}"]
        variables = [fsdp, fsdp]
    else:  # an indexed Job with PyTorch's variables
        pod = {**fsdp, "WORLD_SIZE": "2", "MASTER_ADDR": hosts.a.address}
        variables = [{**pod, "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": f"train-{i}"} for i in range(2)]
    first, second = on_both(hosts, [*words, script, "5"], variables)
    assert first.code() == 5, first.err
    assert second.code() == 5, second.err
    assert losses(first.out) == losses(alone.out)
    assert "on 1" in first.out
    assert exit_record(tmp_path / "run")["exit_code"] == 5
    assert not (tmp_path / "run" / "meeting.json").exists()  # with its secret
    assert "JOB_COMPLETION_INDEX=1" in second.err if how == "pods" else "--hosts=" in second.err


def test_a_host_that_does_not_come_is_named(hosts, tmp_path):
    words = ["--run-folder", tmp_path / "run", "--join-timeout", "2", "--hosts", f"{hosts.a.address},{hosts.b.address}", "x.py"]
    lonely = run(hosts.a, *words)
    assert lonely.code() == 124, lonely.err
    assert f"1 of 2 hosts are here; missing: 1 ({hosts.b.address})" in lonely.err
    lonely = run(hosts.b, *words)
    assert lonely.code() == 124, lonely.err
    assert "the first host has written nothing" in lonely.err
    assert exit_record(tmp_path / "run")["retryable"]


def test_the_death_of_the_first_host_ends_the_others(hosts, tmp_path):
    script = hosts.a.script(WAIT, "wait.py")
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", script]
    first, second = on_both(hosts, words, [{}, {}])
    wait_until(lambda: first.out.count("pid ") == 2, LIMIT_S, "two ranks")
    pids = {p for job in (first, second) for p in descendants(job.pid)}
    first.signal(signal.SIGKILL)
    first.code()
    assert second.code() != 0
    wait_until(lambda: not any(alive(p) for p in pids), LIMIT_S, "the end of all")
