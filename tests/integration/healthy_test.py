"""False alarms: the examples train under ``shoal run``, many times, and no verdict may find a trouble.

HEALTHY_RUNS: how many trainings (50), HEALTHY_ONLY: a word in the names of those that run, HEALTHY_FOLDER: keeps their folders. The test
writes each alarm, and the step time of each run, to its outputs (``healthy.txt``).
"""

import itertools
import os
import shutil
import sys
import time
from pathlib import Path

from launching.commands import Running
from launching.ranks import free_port
from recorded import recorded
from running import run

EXAMPLES = [Path("examples").absolute(), Path("bazel-bin/examples").absolute()]  # scripts and, outside of Bazel, programs in C++
RUNS = int(os.environ.get("HEALTHY_RUNS", "50"))
ONLY = os.environ.get("HEALTHY_ONLY", "")
RANKS = ["--nproc", "2"]
DRIVER = ["--driver", "--nproc", "4"]
GPT = ["--layers", "2", "--width", "64", "--no-reference", "--sample-bytes", "20"]

# README.md's program, with more steps.
QUICK = """
import torch
from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import ScalingConfig, Trainer, get_context, report


def loop():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Linear(256, 1))
    for unit in (model[0], model[2], model):
        fully_shard(unit)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(get_context().get_world_rank())
    for step in range(1500):
        x = torch.randn(64, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report({"step": step, "loss": loss.item()})


if __name__ == "__main__":
    print(Trainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit().metrics)
"""

# name: options of shoal run (none: the script runs alone), the script, its options. OUT is a folder of the run.
TRAININGS = {
    "quick": (DRIVER, QUICK, []),
    "quickstart": ([], "train_gpt.py", [*GPT, "--steps", "200", "--out", "OUT"]),  # a worker joins, and one is killed
    "gpt": (DRIVER, "train_gpt.py", [*GPT, "--steps", "300", "--out", "OUT"]),
    "gpt fixed": (DRIVER, "train_gpt.py", [*GPT, "--steps", "300", "--validate-every", "50", "--fixed", "--out", "OUT"]),
    "gpt wide": (DRIVER, "train_gpt.py", ["--no-reference", "--steps", "150", "--validate-every", "40", "--out", "OUT"]),
    "convnet": (DRIVER, "fsdp1_convnet.py", ["--batch-size", "16", "--epochs", "2"]),
    "convnet units": (DRIVER, "fsdp1_convnet.py", ["--batch-size", "16", "--epochs", "1", "--min-num-params", "20000", "--cpu-offload"]),
    "t5": (RANKS, "fsdp1_t5.py", ["--samples", "300", "--out", "OUT"]),
    "t5 bf16": (RANKS, "fsdp1_t5.py", ["--samples", "200", "--bf16", "--no-run_validation", "--out", "OUT"]),
    "fsdp2": (RANKS, "fsdp2_guide.py", ["--epochs", "300", "--out", "OUT"]),
    "fsdp2 mixed": (
        RANKS,
        "fsdp2_guide.py",
        ["--epochs", "200", "--explicit-prefetching", "--mixed-precision", "--dcp-api", "--out", "OUT"],
    ),
    "graph": ([], "graph_driver.py", []),
    "spmd guide": (RANKS, "spmd_guide.py", []),
    "spmd fsdp": (RANKS, "spmd_fsdp.py", []),
    "spmd resnet": (RANKS, "spmd_resnet.py", []),
    "spmd 2d": (RANKS, "spmd_2d.py", []),
    "server in C++": ([], "parameter_server", []),
}


def text_of(v: dict) -> str:
    return f"{v['code']}: {v['sentence']}; {'; '.join(v['evidence'])}"


def alarms_of(folder: Path, shown: dict) -> list[str]:
    return [text_of(v) for v in shown["verdicts"] if v["state"] != "ok"] + [
        text_of(v) for p in recorded(folder, "launcher") for v in p.events("verdict")
    ]


def alone(command, folder: Path, argv: list[str], env: dict[str, str]) -> tuple[Running, list[str]]:
    """Runs a script without ``shoal run``, while ``shoal show`` is called again and again. Returns what it says."""
    argv = [*([sys.executable] if argv[0].suffix == ".py" else []), *map(str, argv)]
    job, found = command.program(argv, SHOAL_RUN_FOLDER=str(folder), **env), {}
    while job.process.poll() is None:
        time.sleep(0.1)
        if (folder / "processes").exists():
            found |= {v["code"]: text_of(v) for v in command.json("show", folder)["verdicts"] if v["state"] != "ok"}
    return job, [*found.values()]


def test_healthy_trainings_raise_no_alarm(shoal_command, tmp_path):
    kept = Path(os.environ.get("HEALTHY_FOLDER", tmp_path))
    lines, failures = [], []
    chosen = [(name, training) for name, training in TRAININGS.items() if ONLY in name]
    for number, (name, (options, script, words)) in zip(range(RUNS), itertools.cycle(chosen)):
        folder = kept / f"{number:02}-{name.replace(' ', '-')}"
        shutil.rmtree(folder, ignore_errors=True)
        out = folder.with_name(folder.name + "-out")
        shutil.rmtree(out, ignore_errors=True)
        path = shoal_command.script(script, "quick.py") if script == QUICK else next(f / script for f in EXAMPLES if (f / script).exists())
        words = [str(out) if w == "OUT" else w for w in words]
        begin = time.monotonic()
        env = {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
        if options:
            job, found = run(shoal_command, "--run-folder", folder, *options, path, *words, **env), []
        else:
            job, found = alone(shoal_command, folder, [path, *words], env)
        code = job.code(600)
        shown = shoal_command.json("show", folder)
        found += alarms_of(folder, shown)
        lines.append(
            f"{number:2} {name:<14} {time.monotonic() - begin:5.1f} s, {len(shown['ranks'])} ranks, {shown['step']:5} steps of "
            f"{shown['step_us'] / 1000:6.1f} ms, load {os.getloadavg()[0]:.1f}: {len(found)} alarms"
        )
        lines += [f"     {alarm}" for alarm in found]
        if code or not shown["step"]:
            failures.append(f"{name}: code {code}, {shown['step']} steps\n{job.out[-2000:]}\n{job.err[-2000:]}")
        print("\n".join(lines[-1 - len(found) :]), flush=True)
    if outputs := os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR"):
        Path(outputs, "healthy.txt").write_text("\n".join(lines) + "\n")
    assert not failures, failures
    assert not [line for line in lines if line.startswith("     ")], "\n".join(lines)
