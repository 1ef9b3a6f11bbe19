"""Ranks that torchrun starts. They start a private node, which can be inspected, and which ends with the ranks however they end."""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import _shoal_switch
import pytest
import torch
from launching.commands import LIMIT_S
from launching.leftovers import alive, descendants, wait_until
from launching.ranks import FORKING, TORCHRUN

import shoal

TRAIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from shoal.fsdp import fully_shard
from shoal.optim import AdamW

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 3))
fully_shard(model[0])
fully_shard(model)
optimizer = AdamW(model.parameters(), lr=1e-2)
steps, victim, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for step in range(steps):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3:
        print(f"rank {dist.get_rank()} trains", flush=True)
        if dist.get_rank() == victim:
            if how == "raise":
                raise ValueError("the cause")
            if how == "exit":
                sys.exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
dist.destroy_process_group()
"""


@pytest.fixture
def torchrun(shoal_command):
    """Starts torchrun with two ranks of the program above. Arguments: the number of steps, the rank that fails, and how it fails.
    ``fresh``: the ranks are new interpreters."""

    def start(steps: int, victim: int = -1, how: str = "never", fresh: bool = False):
        script = shoal_command.script(TRAIN, "train.py")
        words = [*TORCHRUN, "2"] if fresh else [*FORKING, "torchrun"]
        return shoal_command.program([sys.executable, *words, str(script), str(steps), str(victim), how], OMP_NUM_THREADS="1")

    return start


def session(home: Path) -> dict:
    """The info file of the private node's session."""
    (info,) = home.glob("*/info.json")
    return json.loads(info.read_text())


def test_the_private_node_lists_its_shard_actors(shoal_command, torchrun):
    job = torchrun(100_000)
    for rank in range(2):
        job.said(f"rank {rank} trains")
    said = session(shoal_command.home)
    assert said["head"] == ""  # the private node listens on no port, only on unix sockets
    rows = shoal_command.rows("actors", "--address", said["head_local"])
    rows.sort(key=lambda row: row["rank"])
    assert [(r["class"], r["state"], r["rank"], r["world_size"]) for r in rows] == [("ShardActor", "ALIVE", rank, 2) for rank in range(2)]
    # 15 and 3 rows of weights and as many of biases in fp32; rank 0 holds the first halves.
    assert [int(r["attributes"]["rows"]) for r in rows] == [8 + 8 + 2 + 2, 7 + 7 + 1 + 1]
    assert [int(r["attributes"]["bytes"]) for r in rows] == [4 * (8 * 8 + 8 + 2 * 15 + 2), 4 * (7 * 8 + 7 + 1 * 15 + 1)]
    assert all(r["generation"] == 1 for r in rows)
    pids = {p for p in descendants(job.pid) if alive(p)}
    job.signal(signal.SIGTERM)
    job.code()
    wait_until(lambda: not any(alive(p) for p in pids), 5, "the end of all")


def test_a_run_that_ends_well_leaves_no_session_folder(shoal_command, torchrun):
    assert torchrun(10, fresh=True).code() == 0
    wait_until(lambda: not list(shoal_command.home.iterdir()), 5, "the end of the session")


@pytest.mark.parametrize(("victim", "how"), [(0, "exit"), (0, "kill"), (1, "raise"), (1, "kill")])
def test_a_failing_rank_is_named_and_nothing_is_left(shoal_command, torchrun, victim, how):
    """Rank 0 started the private node and rank 1 joined it. Neither the node nor the other rank outlives the failing one."""
    job = torchrun(100_000, victim, how)
    assert job.code() == 1, job.err
    assert f"rank      : {victim} " in job.err
    if how == "raise":
        assert "ValueError: the cause" in job.err
    wait_until(lambda: not list(shoal_command.home.iterdir()), 5, "the end of the session")


EVALUATE = """
import sys, time
import torch, torch.distributed as dist
from torch import nn
from shoal.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Linear(8, 3)
fully_shard(model)
rank = int(dist.get_rank())
for training in range(2):
    model(torch.ones(4, 8)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.zero_grad()
if rank == 1 and sys.argv[1] == "early":
    sys.exit(0)
with torch.no_grad():
    for batch in range(1 if rank == 1 else 30):
        y = model(torch.ones(4, 8))
        time.sleep(0.05 if rank == 0 else 0)
print(f"rank {rank}: {y.sum().item()}", flush=True)
"""


def test_a_finished_rank_may_end_before_the_others(shoal_command):
    """Rank 1 ends while rank 0 still reads the rows that rank 1 owned: the node keeps them."""
    script = shoal_command.script(EVALUATE, "evaluate.py")
    words = [sys.executable, *FORKING, "2", str(script)]
    job = shoal_command.program([*words, "done"])
    assert job.code() == 0, job.err
    said = sorted(job.out.splitlines())
    assert [line[:7] for line in said] == ["rank 0:", "rank 1:"]
    assert said[0][7:] == said[1][7:]
    # With "early", rank 1 ends before its last forward. Rank 0, which waits for that forward, fails with rank 1's name before the time
    # limit.
    job = shoal_command.program([*words, "early"])
    assert job.code() == 1
    for text in ("ActorDiedError", "ShardActor rank 1", "waiting for the parameters"):
        assert text in job.err, job.err


def test_a_killed_torchrun_leaves_nothing_of_shoal(shoal_command, torchrun):
    job = torchrun(100_000)
    for rank in range(2):
        job.said(f"rank {rank} trains")
    said = session(shoal_command.home)
    ranks = [p for p in descendants(job.pid) if alive(p)]
    for p in ranks:  # a killed torchrun leaves its ranks running
        os.kill(p, signal.SIGKILL)
    job.signal(signal.SIGKILL)
    job.code()
    wait_until(lambda: shoal_command("list", "actors", "--address", said["head_local"]).returncode == 5, 5, "the node's end")


# Programs with torch's FSDP that do not name Shoal.

TORCHS = """
import sys
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, ShardingStrategy, fully_shard

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model, wrapped = (nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 3)) for _ in range(2))
for unit in (model[0], model):
    fully_shard(unit)
for m in (model, FullyShardedDataParallel(wrapped, use_orig_params=True, sharding_strategy=ShardingStrategy.NO_SHARD)):
    m(torch.ones(4, 8)).sum().backward()
print(f"{__name__} {sys.argv[1:]} {isinstance(model, FSDPModule)} {fully_shard.__module__} {type(m).__module__}", flush=True)
torch.distributed.destroy_process_group()
"""
SHARDED_BY_SHOAL = "__main__ ['--lr', '1'] True shoal.fsdp._fully_shard shoal.fsdp1.fully_sharded_data_parallel"
SAID_ONCE = [  # messages that appear once per mesh, not once per rank
    "shoal: Shoal shards this model over 2 ranks (cpu), in the place of torch's FSDP; first unit: Linear\n",
    "shoal: Shoal shards this model over 2 ranks (cpu, 2x1: replicas x shards), in the place of torch's FSDP; first unit: Sequential\n",
]


@pytest.mark.parametrize("way", ["script", "variable"])
def test_a_program_that_names_only_torch_is_sharded_by_shoal(shoal_command, way):
    script = shoal_command.script(TORCHS, "torchs.py")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {}
    if way == "variable":
        # Runs the .pth file, as site does in an environment that has the wheel.
        starter = shoal_command.script(
            f"import runpy, site, sys; site.addsitedir({str(PTH.parent)!r}); "
            "assert 'torch.distributed.fsdp' not in sys.modules; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')",
            "starter.py",
        )
        words, env = [*words, str(starter), str(script)], {"SHOAL_FSDP": "1"}
    else:
        words += ["-m", "shoal.fsdp.run", str(script)]
    job = shoal_command.program([*words, "--lr", "1"], **env)
    assert job.code() == 0, job.err
    # counted in the text, not by lines, because output of the two ranks may be mixed in one line
    assert job.out.count(SHARDED_BY_SHOAL) == 2, job.out
    assert job.err.count("Shoal shards this model") == len(SAID_ONCE), job.err
    assert [job.err.count(line) for line in SAID_ONCE] == [1, 1], job.err


@pytest.mark.parametrize("api", ["shoal.fsdp.fully_shard", "shoal.fsdp1.FullyShardedDataParallel"])
def test_a_program_without_a_launcher_gets_a_hint(monkeypatch, api):
    module, _, name = api.rpartition(".")
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    # ValueError, the type that torch raises
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set") as refused:
        getattr(importlib.import_module(module), name)(torch.nn.Linear(2, 2))
    assert "hint: start the program with torchrun or shoal submit --num-workers" in str(refused.value)


PTH = next(p for p in (Path(m) / "wheel" / "shoal-fsdp.pth" for m in (Path(shoal.__file__).parents[1], "python")) if p.exists())


@pytest.mark.parametrize("value", [None, "", "0", "1"])
def test_the_variable_loads_nothing_before_a_program_imports_torchs_fsdp(shoal_command, value):
    program = (
        f"import site, sys; before = set(sys.modules); site.addsitedir({str(PTH.parent)!r}); new = set(sys.modules) - before; "
        "print('_shoal_switch' in new, 'torch' in new, 'shoal' in new)"
    )
    env = {k: v for k, v in os.environ.items() if k != "SHOAL_FSDP"} | ({} if value is None else {"SHOAL_FSDP": value})
    words = [sys.executable, "-S", "-c", program]  # -S: without the .pth files of this environment
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == f"{value == '1'} False False\n", done.stderr


@pytest.mark.parametrize("first", ["shoal.fsdp", "shoal.fsdp1", "torch._dynamo", "torch.distributed.checkpoint.state_dict"])
def test_the_variable_works_for_any_import_order(shoal_command, first):
    program = (
        f"import site; site.addsitedir({str(PTH.parent)!r}); import {first}; "
        "import shoal.fsdp, torch.distributed.fsdp as fsdp, torch.distributed.checkpoint.state_dict as dcp; "
        "print(shoal.fsdp.is_installed(), fsdp.FullyShardedDataParallel.__module__, dcp.FSDP.__module__); "
        "shoal.fsdp.uninstall(); print(fsdp.fully_shard.__module__, fsdp.FullyShardedDataParallel.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SHOAL_FSDP": "1"}, capture_output=True, text=True, timeout=LIMIT_S
    )
    module = "fully_sharded_data_parallel"
    installed, after = done.stdout.splitlines()
    assert installed == f"True shoal.fsdp1.{module} torch.distributed.fsdp.{module}", done.stderr
    assert after == f"torch.distributed.fsdp torch.distributed.fsdp.{module}", done.stderr


@pytest.mark.parametrize(("value", "on"), [("False", False), ("off", False), ("NO", False), ("On", True), ("yes", True), ("true", True)])
def test_the_variable_is_on_or_off_in_words(monkeypatch, value, on):
    monkeypatch.setenv("SHOAL_FSDP", value)
    assert _shoal_switch.is_on() is on


@pytest.mark.parametrize(("value", "said"), [("off", "torch.distributed.fsdp"), ("2", "SHOAL_FSDP is 1, true, on or yes, or 0")])
def test_the_variable_off_keeps_torchs_fsdp_and_other_values_are_refused(value, said):
    program = f"import site; site.addsitedir({str(PTH.parent)!r}); import torch.distributed.fsdp as f; print(f.fully_shard.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SHOAL_FSDP": value}, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert said in (done.stdout if value == "off" else done.stderr.splitlines()[-1]), done
    assert done.returncode == (0 if value == "off" else 1), done


def test_a_trainer_refuses_a_wrong_variable_before_it_starts_ranks(shoal_command):
    driver = shoal_command.driver("from shoal.train import Trainer; Trainer(lambda: None).fit()", SHOAL_FSDP="maybe")
    assert driver.code() == 1
    assert "InvalidArgument: SHOAL_FSDP is 1, true, on or yes, or 0" in driver.err.splitlines()[-1], driver.err
    assert "rank" not in driver.err.splitlines()[-1]


def test_run_accepts_a_module_as_python_does(tmp_path):
    (tmp_path / "named.py").write_text("import sys, torch.distributed.fsdp as f; print(__name__, sys.argv[1:], f.fully_shard.__module__)\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    words = [sys.executable, "-m", "shoal.fsdp.run", "-m", "named", "-m", "7"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "__main__ ['-m', '7'] shoal.fsdp._fully_shard\n", done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-h"], 0, "usage: python -m shoal.fsdp.run"),
        ([], 2, "usage: python -m shoal.fsdp.run"),
        (["nowhere.py"], 1, "there is no file nowhere.py; a module is run with -m"),
        (["--lr", "1"], 1, "--lr is no option of this command"),
    ],
)
def test_run_reports_programs_that_it_cannot_start(monkeypatch, capsys, words, code, said):
    monkeypatch.setattr(sys, "argv", ["run", *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("shoal.fsdp.run", run_name="__main__")
    out, err = capsys.readouterr()
    if isinstance(end.value.code, str):  # for such a text the interpreter exits with 1
        assert (code, said in end.value.code) == (1, True)
    else:
        assert (end.value.code, said in out + err) == (code, True)
