"""TorchX's scheduler ``shoal_slurm`` on a real Slurm of two hosts. Not part of ``bazel test //...``: it installs TorchX
(requirements-launchers.txt)."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from internals.core import binary
from launching.commands import LIMIT_S
from launching.leftovers import wait_until
from launching.slurm import slurm
from running import TRAIN, losses, run

PROGRAMS = str(Path(__file__).parent / "torchx_programs.py")
REQUEST = """
import sys
from torchx.components import dist
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDef, Role, Resource

scheduler = get_scheduler_factories()["shoal_slurm"]("test")
for app, options in %s:
    try:
        print(scheduler.submit_dryrun(app, options))
    except ValueError as error:
        print("REFUSED", error)
"""


@pytest.fixture(scope="module")
def cluster():
    yield from slurm()


@pytest.fixture(scope="module")
def shoal(cluster) -> Path:
    """The command, with a SHOAL_HOME for each host: the hosts of a test share a disk."""
    each = cluster.folder / "shoal-of-a-host"
    homes = " ".join(str(host.home) for host in cluster.hosts.all)
    each.write_text(f'#!/bin/bash\nhomes=({homes})\nSHOAL_HOME=${{homes[SLURM_NODEID]}} exec {binary()} "$@"\n')
    each.chmod(0o755)
    return each


def result(done: subprocess.CompletedProcess) -> dict:
    said = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    assert said, done.stdout + done.stderr
    return json.loads(said.partition(" ")[2])


def test_a_component_trains_to_the_losses_of_one_host(cluster, shoal, python):
    script = cluster.hosts.a.script(TRAIN, "train.py")
    alone = run(cluster.hosts.a, "--nproc", "2", script, "5", SHOAL_FSDP="1")
    options = f"shoal={shoal},time=1h,job_dir={cluster.folder}"
    words = ["run", "--scheduler", "shoal_slurm", "-cfg", options]
    words += ["dist.torchrun", "-j", "2x1", "--cpu", "2", "--env", "SHOAL_FSDP=1", "--script", str(script), "5"]
    submitted = cluster(str(Path(python).parent / "torchx"), *words)
    assert alone.code() == 5, alone.err
    handle = re.search(r"shoal_slurm://\S+/\d+", submitted.stdout)
    assert handle, submitted.stdout + submitted.stderr
    got = result(cluster(python, PROGRAMS, "follow", handle[0]))
    assert losses(got["output"]) == losses(alone.out)
    assert got["state"] == got["listed"] == "FAILED"  # the script ends with 5
    assert "exit code 5" in got["message"]
    assert got["hosts"] == ["shoal-a", "shoal-b"]
    assert got["role"] == "train"
    assert got["output of host 1"] == []


def test_a_cancelled_role_ends(cluster, shoal, python):
    script = cluster.hosts.a.script("import time; print('up', flush=True); time.sleep(3600)", "endless.py")
    options = {"shoal": str(shoal), "job_dir": str(cluster.folder), "grace": 1}
    got = result(cluster(python, PROGRAMS, "cancel", json.dumps(options), str(script)))
    assert "up" in got["first"]
    assert got["state"] == "CANCELLED"
    wait_until(lambda: not cluster.jobs(), LIMIT_S, "the end of the job")


def request(python: str, *given: str) -> list[str]:
    done = subprocess.run([python, "-W", "ignore", "-c", REQUEST % f"[{','.join(given)}]"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_request_is_the_script_of_shoal_launch(python):
    said = request(
        python, '(dist.torchrun("--steps", "a b", script="t.py", j="2x4", env={"A": "b c"}), {"partition": "p", "sbatch": "--qos=q"})'
    )
    assert said[0] == "# sbatch --parsable --comment=shoal_slurm --qos=q"
    assert {"#SBATCH --partition=p", "#SBATCH --nodes=2", "export A='b c'"} <= set(said)
    assert "  shoal run --nproc 4 --grace 30 t.py --steps 'a b'" in said
    assert said.index("export A='b c'") > max(n for n, line in enumerate(said) if line.startswith("#SBATCH"))


def test_a_variable_gets_the_number_of_the_job(python):
    env = '{"TORCHX_JOB_ID": "shoal_slurm://a b/${app_id}", "B": "${app_id}$HOME"}'
    said = request(python, f'(AppDef("n", [Role("a", image="", entrypoint="x", env={env})]), {{}})')
    exports = "\n".join(line for line in said if line.startswith("export "))
    words = ["env", "-i", "SLURM_JOB_ID=17", "PATH=/usr/bin:/bin", "bash", "-euc", f"{exports}\nenv"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert {"TORCHX_JOB_ID=shoal_slurm://a b/17", "B=17$HOME"} <= set(done.stdout.splitlines())


def test_options_of_torchrun_with_and_without_a_value_are_known(python):
    line = "--virtual-local-rank --standalone -t 3 --max_restarts 0 --nproc_per_node=2 -m --rdzv-id 1 a.b -t"
    said = request(python, f'(AppDef("n", [Role("a", image="", entrypoint="torchrun", args={line.split()})]), {{}})')
    assert "  shoal run --nproc 2 --grace 30 -- python3 -m a.b -t" in said


# An scontrol that prints the next answer at each call, and again the last one.
SCONTROL = """#!/bin/bash
cd "$(dirname "$0")"
read -r first <answers
[ "$(wc -l <answers)" -gt 1 ] && sed -i 1d answers
[ "$first" = found ] && echo "JobId=1 JobName=n JobState=RUNNING NumNodes=1" && exit 0
echo "slurm_load_jobs error: $first" >&2
exit 1
"""
DESCRIBE = """
import sys
from torchx_plugins.schedulers import shoal_slurm

shoal_slurm._WAITS_S = (0, 0)
try:
    print(getattr(shoal_slurm.ShoalSlurm("test").describe("1"), "state", "unknown"))
except RuntimeError as error:
    print("ERROR", error)
"""
OUTAGE = "Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    ("answers", "sacct", "expected"),
    [
        ([OUTAGE, OUTAGE, "found"], "exit 0", "RUNNING"),
        ([OUTAGE], "exit 0", f"ERROR Slurm does not say the state of job 1, in 3 attempts: slurm_load_jobs error: {OUTAGE}"),
        (["Invalid job id specified"], "exit 0", "unknown"),
        (["Invalid job id specified"], "echo Slurm accounting storage is disabled >&2; exit 1", "unknown"),
        (["Invalid job id specified"], "echo 'n|COMPLETED|0:0|1|a'", "SUCCEEDED"),
        (["Invalid job id specified"], "echo no database >&2; exit 1", "ERROR slurmctld has forgotten job 1, and sacct fails: no database"),
    ],
)
def test_an_outage_of_slurm_is_not_the_end_of_a_job(python, tmp_path, answers, sacct, expected):
    (tmp_path / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    for name, text in (("scontrol", SCONTROL), ("sacct", f"#!/bin/bash\n{sacct}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([python, "-W", "ignore", "-c", DESCRIBE], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.startswith(expected), done.stdout + done.stderr


def test_an_elastic_component_begins_with_its_smaller_number_of_hosts(python):
    said = request(python, '(dist.torchrun(m="a.b", j="1:4x1"), {})')
    assert "#SBATCH --nodes=1-4" in said
    assert "  shoal run --min 1 --max 4 --grace 30 -- python3 -m a.b" in said


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ('AppDef("n", [Role("a", image=""), Role("b", image="")])', "takes an application of one role, not of 2: a, b"),
        ('AppDef("n", [Role("a", image="", entrypoint="x", max_retries=2)])', "role a has max_retries=2"),
        ('AppDef("n", [Role("a", image="", entrypoint="x", args=["${replica_id}"])])', "ranks read RANK"),
        ('AppDef("n", [Role("a", image="", entrypoint="x", env={"A": "${rank0_env}"})])', "variable A of role a has ${rank0_env}"),
        ('AppDef("n", [Role("a", image="", entrypoint="x", env={"A;B": "c"})])', "has a variable 'A;B' in its env"),
        ('AppDef("n", [Role("a", image="", entrypoint="torchrun", args=["--max-restarts=3", "t.py"])])', "does not repeat a run"),
        ('AppDef("n", [Role("a", image="", entrypoint="torchrun", args=["--max_restart", "3", "t.py"])])', "has --max_restart, which"),
        ('AppDef("n", [Role("a", image="", entrypoint="torchrun", args=["--tee"])])', "--tee without a value"),
        ('AppDef("n", [Role("a", image="", entrypoint="torchrun", args=["--standalone"])])', "a torchrun without a script"),
    ],
)
def test_what_it_cannot_start_is_refused(python, app, text):
    (said,) = request(python, f"({app}, {{}})")
    assert said.startswith("REFUSED")
    assert text in said


def test_options_that_contradict_each_other_are_refused(python):
    said = "\n".join(request(python, '(dist.torchrun(script="t.py", j="1x1"), {"time": "12"})'))
    assert "shoal launch slurm refuses role t: " in said
