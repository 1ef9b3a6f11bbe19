"""``shoal run`` under a real Slurm of two hosts."""

import re

import pytest
from internals.core import binary
from launching.commands import LIMIT_S
from launching.leftovers import alive, descendants, wait_until
from launching.slurm import slurm
from running import SAVE, TRAIN, exit_record, losses, run


@pytest.fixture(scope="module")
def cluster():
    yield from slurm()


def test_a_step_trains_to_the_losses_of_one_host(cluster):
    script = cluster.hosts.a.script(TRAIN, "train.py")
    alone = run(cluster.hosts.a, "--nproc", "2", script, "5", SHOAL_FSDP="1")
    step = cluster.srun("run", script, "5", SHOAL_FSDP="1")
    assert step.code() == 5, step.err
    assert alone.code() == 5, alone.err
    assert losses(step.out) == losses(alone.out)
    (job,) = re.findall(r"host 0 of 2 hosts, which leads, .*SLURM_STEP_NODELIST=shoal-a,shoal-b .*SLURM_JOB_ID=(\d+)", step.err)
    assert "host 1 of 2 hosts, led by shoal-a" in step.err
    assert exit_record(cluster.folder / "shoal-run" / f"{job}-0")["exit_code"] == 5


@pytest.mark.parametrize("number", ["TERM", "USR1"])
def test_a_signal_to_the_step_means_save_and_leave(cluster, tmp_path, number):
    """Slurm sends the signal to all processes of the step: also to heads, nodes and ranks."""
    script = cluster.hosts.a.script(SAVE, "save.py")
    step = cluster.srun("run", "--grace", LIMIT_S, script, tmp_path / "saved")
    step.said("it trains")
    (job,) = cluster.jobs()
    cluster("scancel", f"--signal={number}", job)
    assert step.code() == 0, step.err
    assert step.out.count("saved") == 2, step.err
    (checkpoint,) = (tmp_path / "saved").glob("step-*")
    assert exit_record(cluster.folder / "shoal-run" / f"{job}-0")["checkpoint"] == str(checkpoint)


def test_a_launched_script_trains_and_its_exit_code_comes_back(cluster):
    train = cluster.hosts.a.script(TRAIN, "train.py")
    words = ["--hosts", "2", "--nproc", "1", "--time", "1h", "--shoal", str(cluster.command), "--", str(train), "5"]
    job = cluster.program(binary(), "launch", "slurm", *words)
    assert job.code() == 5, job.out + job.err
    assert sorted(losses(job.out)) == [0, 1]
    assert "Ctrl-C leaves it alone" in job.err
    assert not cluster.jobs()


def test_a_job_that_waits_says_why(cluster):
    """The batch script's log appears when the job starts."""
    other = cluster("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 3600").stdout.strip()
    wait_until(lambda: cluster.job_states().get(other) == "RUNNING", LIMIT_S, "the other job")
    words = ["--hosts", "2", "--nproc", "1", "--shoal", str(cluster.command), "--", "true"]
    job = cluster.program(binary(), "launch", "slurm", *words)
    job.said(": PENDING (")
    assert re.search(r"shoal: job \d+: PENDING \((Resources|Priority)\)", job.err), job.err
    cluster("scancel", other)
    job.said("has started")
    assert job.code() == 0, job.out + job.err


def test_several_tasks_on_a_host_are_refused(cluster):
    both = cluster("srun", "--nodes=2", "--ntasks-per-node=2", binary(), "run", "x.py")
    assert both.returncode == 93
    assert "SLURM_STEP_NUM_NODES=2 and SLURM_STEP_NUM_TASKS=4 contradict each other" in both.stderr
    script = cluster.folder / "batch.sh"
    script.write_text(f"#!/bin/sh\nexec {binary()} run x.py\n")
    batch = cluster("sbatch", "--wait", "--nodes=2", f"--output={cluster.folder}/batch.out", str(script))
    assert batch.returncode == 93, batch.stderr
    assert "srun --ntasks-per-node=1 shoal run" in (cluster.folder / "batch.out").read_text()


def test_a_cancelled_step_leaves_nothing(cluster):
    step = cluster.srun("run", "--grace", "1", cluster.hosts.a.script("import time; print('up', flush=True); time.sleep(3600)"))
    wait_until(lambda: step.out.count("up") == 2, LIMIT_S, "two ranks")
    pids = [p for host in cluster.hosts.all for p in _pids(host)]
    (job,) = cluster.jobs()
    cluster("scancel", job)
    assert step.code() != 0
    wait_until(lambda: not any(alive(p) for p in pids), LIMIT_S, "the end of all")


def _pids(host) -> list[int]:
    """The processes of the host's session."""
    pids = [int(file.name.split(".")[1]) for file in host.home.glob("*/pids/*.*")]
    assert pids, f"no session in {host.home}"
    return [*pids, *(p for pid in pids for p in descendants(pid))]
