"""``shoal run`` on two hosts, with a scheduler's variables or without."""

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from internals.core import binary
from launching.commands import LIMIT_S, Running
from launching.hosts import two_hosts
from launching.leftovers import alive, descendants, wait_until
from running import SAVE, TRAIN, WAIT, exit_record, losses, run


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
    words = ["--nproc", "1"]
    fsdp = {"SHOAL_FSDP": "1"}
    if how == "hosts":
        words += ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}"]
        variables = [fsdp, fsdp]
    else:  # an indexed Job with PyTorch's variables, a Secret, and no folder that the pods share
        secret = tmp_path / "secret"
        secret.write_text("1f" * 32)
        pod = {**fsdp, "WORLD_SIZE": "2", "MASTER_ADDR": hosts.a.address, "SHOAL_TOKEN_FILE": str(secret)}
        variables = [{**pod, "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": f"train-{i}"} for i in range(2)]
    first, second = on_both(hosts, [*words, script, "5"], variables)
    assert first.code() == 5, first.err
    assert second.code() == 5, second.err
    assert losses(first.out) == losses(alone.out)
    assert f"loss 0 of 2 at {hosts.a.address}" in first.out  # rank 0 is on the first host
    folder = tmp_path / "run" if how == "hosts" else hosts.a.home / "shoal-run" / "run"
    assert exit_record(folder)["exit_code"] == 5
    assert not (folder / "meeting.json").exists()  # with its secret
    assert "JOB_COMPLETION_INDEX=1" in second.err if how == "pods" else "--hosts=" in second.err


def test_gloo_connects_where_a_hosts_name_is_also_its_loopback_address(hosts, tmp_path, monkeypatch):
    """As on Debian, whose installer writes 127.0.1.1 into /etc/hosts."""
    monkeypatch.setattr(type(hosts.a), "names_device", False)
    own = {host: tmp_path / f"hosts-{host.name}" for host in hosts.all}
    for host, file in own.items():
        file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()}\n{host.address} {socket.gethostname()}\n")
    words = ["run", "--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--nproc", "1"]
    words += [hosts.a.script(TRAIN, "train.py"), "0"]
    mounted = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']
    jobs = [host.program([*mounted, str(own[host]), binary(), *map(str, words)]) for host in hosts.all]
    assert [job.code() for job in jobs] == [0, 0], jobs[0].err + jobs[1].err


def test_a_signal_to_any_host_means_save_and_leave(hosts, tmp_path):
    """The ranks agree on the step, and the record names the checkpoint."""
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--grace", str(LIMIT_S)]
    first, second = on_both(hosts, [*words, hosts.a.script(SAVE, "save.py"), tmp_path / "saved"], [{}, {}])
    first.said("it trains")
    second.signal(signal.SIGUSR1)
    assert (first.code(), second.code()) == (0, 0), first.err + second.err
    assert first.out.count("saved") == 2
    (checkpoint,) = (tmp_path / "saved").glob("step-*")
    assert exit_record(tmp_path / "run")["checkpoint"] == str(checkpoint)


def sessions_pids(host, role) -> list[int]:
    """The processes of this role in the sessions of the host."""
    return [int(f.name.partition(".")[2]) for f in host.home.glob(f"**/pids/{role}.*") if f.name.partition(".")[2].isdigit()]


def test_a_host_whose_ranks_end_first_has_the_result_of_the_run(hosts, tmp_path):
    """The first host has drained it, and it has no signal of its own."""
    secret, go = tmp_path / "secret", tmp_path / "go"
    secret.write_text("2e" * 32)
    text = f"{SAVE}\nimport os, time\nwhile os.environ['RANK'] == '0' and not os.path.exists({str(go)!r}):\n    time.sleep(0.05)\n"
    words = ["--run-folder", tmp_path / "run", "--nproc", "1", "--grace", str(2 * LIMIT_S)]
    words += [hosts.a.script(text, "late.py"), tmp_path / "saved"]
    pod = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts.a.address, "SHOAL_TOKEN_FILE": str(secret)}
    first, second = on_both(hosts, words, [{**pod, "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": f"late-{i}"} for i in range(2)])
    first.said("it trains")
    (node,) = sessions_pids(hosts.b, "node")
    first.signal(signal.SIGTERM)
    wait_until(lambda: not alive(node), 2 * LIMIT_S, "the end of the drained node")
    go.touch()
    assert (first.code(), second.code()) == (0, 0), first.err + second.err


def test_a_signal_after_the_death_of_the_head_means_save_and_leave(hosts, tmp_path):
    words = ["--run-folder", tmp_path / "run", "--nproc", "1", "--grace", str(LIMIT_S)]
    job = run(hosts.a, *words, hosts.a.script(SAVE, "save.py"), tmp_path / "saved")
    job.said("it trains")
    (head,) = sessions_pids(hosts.a, "head")
    os.kill(head, signal.SIGKILL)
    wait_until(lambda: set(sessions_pids(hosts.a, "head")) - {head}, LIMIT_S, "another head")
    job.signal(signal.SIGUSR1)
    assert job.code() == 0, job.err
    (checkpoint,) = (tmp_path / "saved").glob("step-*")
    assert exit_record(tmp_path / "run")["checkpoint"] == str(checkpoint)


def test_a_host_that_leaves_before_the_script_has_started_ends(hosts, tmp_path):
    words = ["--run-folder", tmp_path / "run", "--join-timeout", 10 * LIMIT_S]
    words += ["--hosts", f"{hosts.a.address},{hosts.b.address},no-such-host.invalid", hosts.a.script(WAIT, "wait.py")]
    first, second = on_both(hosts, words, [{}, {}])
    first.said("2 of 3 hosts are here")
    second.signal(signal.SIGTERM)
    assert second.code() == 143, second.err
    assert json.loads((tmp_path / "run" / "exit-1.json").read_text())["cause"] == "SIGTERM"
    first.signal(signal.SIGTERM)
    assert first.code() == 143, first.err


ELASTIC = """
import os, sys
import torch
from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import ScalingConfig, State, Trainer, report, steps
from torch.utils.data import DataLoader, TensorDataset


def loop():
    torch.manual_seed(0)
    x = torch.randn(64, 16)
    model = torch.nn.Linear(16, 1)
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    state = State(model=model, optimizer=optimizer)
    for x, y in steps(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16), state, epochs=1_000_000_000):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        report({"workers": int(os.environ["WORLD_SIZE"])})
        if state.mean(torch.tensor(float(os.path.exists(sys.argv[1])))):
            break


if __name__ == "__main__":
    seen = []

    def on_report(metrics):
        if seen[-1:] != [metrics["workers"]]:
            seen.append(metrics["workers"])
            print("workers", seen, flush=True)

    Trainer(loop, scaling_config=ScalingConfig(), on_report=on_report).fit()
"""


def test_hosts_of_an_elastic_run_come_late_die_and_leave(hosts, tmp_path):
    script = hosts.a.script(ELASTIC.replace("sys.argv[1]", repr(str(tmp_path / "end"))), "elastic.py")
    both = f"{hosts.a.address},{hosts.b.address}"
    words = ["--run-folder", tmp_path / "run", "--hosts", both, "--min", "1", "--max", "2", "--nproc", "1"]
    first = run(hosts.a, *words, script)
    first.said("workers [1]")
    second = run(hosts.b, *words, script)
    first.said("workers [1, 2]")
    second.signal(signal.SIGKILL)
    first.said("workers [1, 2, 1]")
    second = run(hosts.b, *words, script)
    first.said("workers [1, 2, 1, 2]")
    second.signal(signal.SIGTERM)
    assert second.code() == 0, second.err
    assert "this host has left the run" in second.err
    first.said("workers [1, 2, 1, 2, 1]")
    (tmp_path / "end").touch()
    assert first.code() == 0, first.err


def test_an_elastic_run_says_how_many_workers_a_trainer_has(hosts, tmp_path):
    text = "from shoal.train import *; print(ScalingConfig().num_workers, ScalingConfig(3).num_workers, flush=True); "
    script = hosts.a.script(text + "Trainer(print, scaling_config=ScalingConfig(num_workers=(7, 9))).fit()", "prints.py")
    words = ["--run-folder", tmp_path / "run", "--min", "1", "--max", "2", "--nproc", "3"]
    job = run(hosts.a, *words, "--hosts", f"{hosts.a.address},{hosts.b.address}", script)
    assert job.code() == 1, job.err
    assert "(3, 6) 3\n" in job.out
    assert "num_workers=(7, 9) needs 7 CPUs, and all hosts of this run have 6 (--max times --nproc)" in job.out + job.err


def test_a_host_that_does_not_come_is_named(hosts, tmp_path):
    words = ["--run-folder", tmp_path / "run", "--join-timeout", "2", "--hosts", f"{hosts.a.address},{hosts.b.address}"]
    words.append(hosts.a.script(WAIT, "wait.py"))
    lonely = run(hosts.a, *words)
    assert lonely.code() == 124, lonely.err
    assert f"1 of 2 hosts are here; missing: 1 ({hosts.b.address})" in lonely.err
    lonely = run(hosts.b, *words)
    assert lonely.code() == 124, lonely.err
    assert "the first host has written nothing" in lonely.err
    assert exit_record(tmp_path / "run")["retryable"]


def test_a_run_without_a_name_leaves_the_record_of_the_one_before_alone(hosts):
    folder = hosts.a.home / "shoal-run" / "run"
    (folder / "processes" / "of-the-run-before").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "exit.json").write_text("{}")
    lonely = run(hosts.a, "--join-timeout", "0.1", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--", "true")
    assert lonely.code() == 124, lonely.err
    aside = Path(re.search(r"the record of the run before is in (\S+)", lonely.err)[1])
    assert aside.parent == folder.parent
    assert sorted(f.name for f in aside.iterdir()) == ["exit.json", "processes"]
    assert (aside / "processes" / "of-the-run-before").exists()
    assert exit_record(folder)["exit_code"] == 124


def test_a_host_that_cannot_come_ends_the_run(hosts, tmp_path):
    """The first host does not wait for it."""
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--join-timeout", 10 * LIMIT_S]
    first, second = on_both(hosts, [*words, hosts.a.script(WAIT, "wait.py")], [{}, {"SHOAL_HOME": "sessions"}])
    assert (first.code(), second.code()) == (93, 93), first.err + second.err
    assert f"host 1 ({hosts.b.address}) has ended with exit code 93: SHOAL_HOME=sessions is no absolute path" in first.err
    assert exit_record(tmp_path / "run")["cause"].startswith("host 1 (")


@pytest.mark.parametrize(("words", "code"), [(["no-such.py"], 93), (["--", "no-such-program"], 127)], ids=["script", "program"])
def test_all_hosts_end_with_the_code_of_a_script_that_cannot_start(hosts, tmp_path, words, code):
    folder = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}"]
    first, second = on_both(hosts, [*folder, *words], [{}, {}])
    assert (first.code(), second.code()) == (code, code), first.err + second.err
    assert words[-1] in first.err
    assert exit_record(tmp_path / "run")["exit_code"] == code


def test_hosts_with_one_session_folder_are_refused(hosts, tmp_path):
    """As where SHOAL_HOME is on a disk that they share."""
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--", "true"]
    first, second = on_both(hosts, words, 2 * [{"SHOAL_HOME": str(hosts.a.home)}])
    assert (first.code(), second.code()) == (93, 93), first.err + second.err
    assert f"with the address {hosts.a.address}, and --interface {hosts.b.address}" in first.err
    assert f"they share the disk of {hosts.a.home}: give each host a SHOAL_HOME of its own" in second.err


def test_a_host_that_waits_ends_with_the_first_host(hosts, tmp_path):
    """The first host ends before they have met."""
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", "--join-timeout", 10 * LIMIT_S]
    second = run(hosts.b, *words, hosts.b.script(WAIT, "wait.py"))
    second.said("waiting: the first host has written nothing")
    assert run(hosts.a, *words, "no-such.py").code() == 93
    assert second.code() == 93, second.err
    assert "the first host has ended with exit code 93: no script no-such.py" in second.err


@pytest.mark.parametrize("how", ["folder", "secret"])
def test_a_host_that_comes_during_an_earlier_run_waits_for_its_own(hosts, tmp_path, how):
    """It takes neither the place nor the exit code of the host that the earlier run has."""
    end = tmp_path / "end"
    words, env = ["--hosts", f"{hosts.a.address},{hosts.b.address}"], {}
    if how == "folder":
        words += ["--run-folder", tmp_path / "run"]
    else:
        (tmp_path / "secret").write_text("2e" * 32)
        (tmp_path / "secret").chmod(0o600)
        env["SHOAL_TOKEN_FILE"] = str(tmp_path / "secret")
    words += ["--", "sh", "-c", f"echo it runs; until [ -e {end} ]; do sleep 0.05; done; echo it has run"]
    first, second = on_both(hosts, words, [env, env])
    first.said("it runs")
    early = run(hosts.b, *words, **env)
    early.said("under way")
    end.touch()
    assert (first.code(), second.code()) == (0, 0), first.err + second.err
    assert early.process.poll() is None, early.err
    later = run(hosts.a, *words, **env)
    assert (later.code(), early.code()) == (0, 0), later.err + early.err
    assert later.out.count("it has run") == 2


def test_hosts_with_different_secrets_and_names_that_do_not_resolve_are_reported(hosts, tmp_path):
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},no-such-host.invalid", hosts.a.script(WAIT, "wait.py")]
    secrets = [tmp_path / name for name in ("one", "other")]
    for digit, secret in zip("12", secrets, strict=True):
        secret.write_text(digit * 64)
        secret.chmod(0o600)
    first = run(hosts.a, "--node-rank", "0", *words, SHOAL_TOKEN_FILE=str(secrets[0]))
    first.said("missing: 1 (no-such-host.invalid): its name does not resolve on this host")
    second = run(hosts.b, "--node-rank", "1", *words, SHOAL_TOKEN_FILE=str(secrets[1]))
    second.said("has another secret than this host, or a certificate of another time: SHOAL_TOKEN_FILE must be the same on each host")


def test_the_others_end_with_the_code_in_the_first_hosts_record(hosts, tmp_path):
    """It has ended for a reason of its own, so its head has no exit code of a script."""
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", hosts.a.script(WAIT, "wait.py")]
    first, second = on_both(hosts, words, [{}, {}])
    first.said("pid ")
    record = {"schema": "shoal.exit/1", "exit_code": 93, "cause": "a reason", "retryable": False, "unix_s": int(time.time())}
    (tmp_path / "run" / "exit.json").write_text(json.dumps(record))
    first.signal(signal.SIGKILL)
    assert second.code() in (93, 143), second.err  # 143: the head has ended the ranks before its own end
    assert second.code() == 143 or "the first host has ended with exit code 93: a reason" in second.err


def test_the_death_of_the_first_host_ends_the_others(hosts, tmp_path):
    script = hosts.a.script(WAIT, "wait.py")
    words = ["--run-folder", tmp_path / "run", "--hosts", f"{hosts.a.address},{hosts.b.address}", script]
    first, second = on_both(hosts, words, [{}, {}])
    wait_until(lambda: first.out.count("pid ") == 2, LIMIT_S, "two ranks")
    pids = {p for job in (first, second) for p in descendants(job.pid)}
    first.signal(signal.SIGKILL)
    first.code()
    # 143: the head has ended the ranks before its own end.
    assert second.code() in (124, 143), second.err
    wait_until(lambda: not any(alive(p) for p in pids), LIMIT_S, "the end of all")
