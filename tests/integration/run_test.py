"""``shoal run`` on one host: its exit codes, its record of the end, and what it leaves behind."""

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from internals.core import binary
from launching.commands import LIMIT_S
from launching.leftovers import alive, command_of, descendants, gone, wait_until
from recorded import recorded
from running import TRAIN, WAIT, exit_record, losses, run


def test_one_host_alone_needs_no_options(shoal_command):
    """An unchanged program of torch's FSDP2, sharded by Shoal."""
    script = shoal_command.script(TRAIN, "train.py")
    job = run(shoal_command, "--nproc", "2", script, "0", SHOAL_FSDP="1")
    assert job.code() == 0, job.err
    assert sorted(losses(job.out)) == [0, 1], job.out
    assert "host 0 of 1 host, which leads, 2 ranks per host (--nproc=2)" in job.err
    (record,) = shoal_command.home.glob("shoal-run/*/exit.json")
    said = json.loads(record.read_text())
    assert (said["exit_code"], said["cause"], said["retryable"]) == (0, None, False)


def test_the_scripts_exit_code_and_its_rank_are_recorded(shoal_command, tmp_path):
    script = shoal_command.script("import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)", "fails.py")
    errors = tmp_path / "termination-log"
    job = run(shoal_command, "--nproc", "2", "--run-folder", tmp_path / "run", script, TORCHELASTIC_ERROR_FILE=str(errors))
    assert job.code() == 7, job.err
    said = exit_record(tmp_path / "run")
    assert (said["exit_code"], said["rank"], said["retryable"]) == (7, 1, True)
    assert json.loads(errors.read_text())["message"]["errorCode"] == 7
    fixed = shoal_command.script("import os, sys; sys.exit(93 if 'SHOAL_RUN_WORKERS' not in os.environ else 1)")
    assert run(shoal_command, "--", fixed, SHOAL_RUN_WORKERS="2:4").code() == 93  # as without --; an outer run's variable is not this run's


@pytest.mark.parametrize(
    ("words", "env", "texts"),
    [
        (["no-such.py"], {}, ["no-such.py"]),
        (["--nnodes", "2"], {"WORLD_SIZE": "3", "RANK": "0"}, ["--nnodes=2", "WORLD_SIZE=3"]),
        (["--nproc", "many"], {}, ["--nproc"]),
        ([], {"SHOAL_FSDP": "maybe"}, ["SHOAL_FSDP is 1, true, on or yes, or 0, false, off, no or empty, not 'maybe'"]),
        ([], {"SHOAL_HOME": "sessions"}, ["SHOAL_HOME=sessions is no absolute path"]),
        (["--nnodes", "2", "--node-rank", "0"], {"SHOAL_TOKEN_FILE": "/no-such-secret"}, ["/no-such-secret"]),
        (["--nnodes", "2", "--node-rank", "1", "--master-addr", "a"], {"SHOAL_TOKEN_FILE": "/no-such-secret"}, ["/no-such-secret"]),
    ],
)
def test_what_another_try_cannot_mend_ends_with_93(shoal_command, tmp_path, words, env, texts):
    errors = tmp_path / "errors.json"
    script = [] if words[:1] == ["no-such.py"] else [shoal_command.script(WAIT, "wait.py")]
    job = run(shoal_command, *words, *script, TORCHELASTIC_ERROR_FILE=str(errors), **env)
    assert job.code() == 93, job.err
    assert all(text in job.err for text in texts), job.err


def test_why_this_hosts_part_did_not_start_is_reported_and_may_be_repeated(shoal_command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        job = run(shoal_command, "--port", port, "--run-folder", tmp_path / "run", shoal_command.script(TRAIN, "train.py"))
        assert job.code() == 120, job.err
    said = exit_record(tmp_path / "run")
    assert port in said["cause"], said
    assert "in use" in said["cause"], said
    assert said["cause"] in job.err
    assert said["retryable"]


def test_a_host_that_joins_in_vain_leaves_the_runs_record_alone(shoal_command, tmp_path):
    script = shoal_command.script("", "train.py")
    assert run(shoal_command, "--run-folder", tmp_path / "run", script).code() == 0
    record = exit_record(tmp_path / "run")
    late = run(shoal_command, "--join", "--min", "1", "--max", "2", "--run-folder", tmp_path / "run", "--join-timeout", "1")
    assert late.code() == 124, late.err
    assert exit_record(tmp_path / "run") == record


@pytest.mark.parametrize("how", ["writable", "link"])
def test_a_folder_that_is_not_the_users_alone_is_refused(shoal_command, tmp_path, how):
    """It gets the secret of the cluster."""
    folder = tmp_path / "folder"
    folder.mkdir()
    run_folder = folder
    if how == "writable":
        folder.chmod(0o777)
    else:
        run_folder = tmp_path / "link"
        run_folder.symlink_to(folder)
    job = run(shoal_command, "--run-folder", f"{run_folder}/", shoal_command.script("pass"))
    assert job.code() == 93, job.err
    assert f"the run's folder {run_folder}" in job.err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_command(shoal_command, number):
    """Also where the command itself is killed."""
    job = run(shoal_command, "--nproc", "2", shoal_command.script(WAIT, "wait.py"))
    wait_until(lambda: job.out.count("pid ") == 2, LIMIT_S, "two ranks")
    pids = {int(p) for p in re.findall(r"pid (\d+)", job.out)} | {p for p in descendants(job.pid) if alive(p)}
    job.signal(number)
    assert job.code() == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(alive(p) for p in pids), LIMIT_S, "the end of all")


def _start_child(job) -> int:
    """The child that has started head and node, and ends them."""
    return wait_until(lambda: next((p for p in descendants(job.pid) if " start --block " in command_of(p)), None), LIMIT_S, "its start")


def test_a_start_that_is_interrupted_leaves_nothing(shoal_command):
    job = run(shoal_command, shoal_command.script(WAIT, "wait.py"))
    start = _start_child(job)
    wait_until(lambda: list(shoal_command.home.glob("*/pids/head.*")), LIMIT_S, "a head")
    job.signal(signal.SIGKILL)
    job.code()
    gone([start], LIMIT_S)
    gone([int(file.name.split(".")[1]) for file in shoal_command.home.glob("*/pids/*.*")], LIMIT_S)


def test_nothing_outlives_the_child_that_has_the_cluster(shoal_command):
    job = run(shoal_command, "--nproc", "2", shoal_command.script(WAIT, "wait.py"))
    wait_until(lambda: job.out.count("pid ") == 2, LIMIT_S, "two ranks")
    pids = {int(p) for p in re.findall(r"pid (\d+)", job.out)} | descendants(job.pid)
    os.kill(_start_child(job), signal.SIGKILL)
    assert job.code() != 0
    gone(pids, LIMIT_S)


def test_a_supervisors_ignored_signal_changes_no_exit_code(shoal_command):
    ignore = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = [sys.executable, "-c", ignore, binary(), "run", shoal_command.script("import sys; sys.exit(7)")]
    job = shoal_command.program([str(word) for word in words])
    assert job.code() == 7, job.err


def test_the_record_of_an_earlier_run_does_not_survive(shoal_command, tmp_path):
    for name in ("exit.json", "checkpoint"):
        (tmp_path / name).write_text("earlier")
    job = run(shoal_command, "--run-folder", tmp_path, shoal_command.script(WAIT, "wait.py"))
    job.said("pid ")
    assert not list(tmp_path.glob("exit*.json"))
    job.signal(signal.SIGINT)
    assert job.code() == 128 + signal.SIGINT
    said = exit_record(tmp_path)
    assert (said["exit_code"], said["checkpoint"]) == (128 + signal.SIGINT, None)


def test_the_documented_variables_are_those_that_are_read(shoal_command):
    """docs/launch.md has one table, with the variables in the order in which they count."""
    rows = shoal_command.json("run", "--variables")["rows"]
    page = next(p for p in (Path("docs/launch.md"), Path(__file__).parents[2] / "docs" / "launch.md") if p.exists())
    documented = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| (.*) \|$", page.read_text(), re.MULTILINE)
    assert documented == [(row["name"], row["system"], row["meaning"]) for row in rows]


FAILS = """
import torch
from torch import nn
from shoal.fsdp import fully_shard
model = fully_shard(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        raise RuntimeError("no more")
"""


def test_the_ranks_learn_their_part_of_the_grace(shoal_command):
    job = run(shoal_command, "--grace", "30", shoal_command.script("import os; print('grace', os.environ['SHOAL_GRACE'])"))
    assert job.code() == 0, job.err
    assert "grace 24" in job.out


def test_a_rank_of_a_script_records_its_end(shoal_command, tmp_path):
    job = run(shoal_command, "--nproc", "2", "--run-folder", tmp_path / "run", shoal_command.script(FAILS, "fails.py"))
    assert job.code() != 0
    for p in recorded(tmp_path / "run"):
        assert [s["step"] for s in p.rows("steps")] == [1, 2, 3]
        assert p.facts["argv"][0].endswith("fails.py")
        (end,) = p.events("end")
        assert (end["code"], end["cause"]) == (1, "RuntimeError: no more")


SLOW = """
import os, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from shoal.fsdp import fully_shard

dist.init_process_group("gloo")
folder, rank, steps = Path(os.environ["FOLDER"]), dist.get_rank(), 0
model = fully_shard(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
last = torch.zeros(1)
while not last:
    x = torch.randn(2, 64)
    if rank == 1 and (folder / "slow").exists():
        time.sleep(0.05)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    if steps == 50:
        (folder / "begun").touch()
    last.fill_((folder / "enough").exists())
    dist.all_reduce(last, dist.ReduceOp.MAX)
"""


def test_a_rank_that_gets_slow_is_named_while_the_script_runs(shoal_command, tmp_path):
    script = shoal_command.script(SLOW, "slow.py")
    job = run(shoal_command, "--nproc", "2", "--run-folder", tmp_path / "run", script, FOLDER=str(tmp_path))
    wait_until((tmp_path / "begun").exists, LIMIT_S)
    (tmp_path / "slow").touch()
    job.said("on rank 1 since step")
    (tmp_path / "enough").touch()
    assert job.code() == 0, job.err
    (launcher,) = recorded(tmp_path / "run", "launcher")
    verdicts = launcher.events("verdict")
    assert [v["rank"] for v in verdicts] == [1]
    assert verdicts[0]["since_step"] >= 50
