"""Training libraries shard with Shoal by SHOAL_FSDP=1 alone, and train and resume with the same losses as without it.

Not part of ``bazel test //...``: it installs the libraries of requirements-libraries.txt, and starts two ranks about twenty times.
"""

import functools
import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest
from internals.core import binary

import shoal

HERE = Path(programs.__file__).parent
PACKAGE = Path(shoal.__file__).parents[1]
REQUIREMENTS = next(p for p in (Path("requirements-libraries.txt"), HERE.parents[1] / "requirements-libraries.txt") if p.exists())
PTH = next(p for p in (PACKAGE / "wheel" / "shoal-fsdp.pth", HERE.parents[1] / "python" / "wheel" / "shoal-fsdp.pth") if p.exists())


@dataclass(frozen=True)
class Case:
    name: str
    beside: str = ""  # the program to compare with, which runs without Shoal; by default the same program
    rel: float = 1e-5


# Without Shoal, Accelerate and Trainer train with DDP on CPUs, which gives the same losses in fp32. Lightning has no FSDP1 on CPUs.
CASES = (
    Case("accelerate_fsdp2_sharded"),
    Case("accelerate_fsdp2_whole_in_bf16", rel=2e-2),
    Case("accelerate_fsdp1_whole_in_bf16", rel=2e-2),
    Case("trainer_fsdp2_sharded"),
    Case("trainer_fsdp1_sharded", beside="trainer_fsdp2_sharded"),
    Case("trainer_fsdp1_whole", beside="trainer_fsdp2_sharded"),
    Case("peft_adapters"),
    Case("lightning_fsdp2_sharded"),
    Case("lightning_fsdp2_whole", beside="lightning_fsdp2_sharded"),
    Case("lightning_fsdp1_sharded", beside="lightning_fsdp2_sharded"),
    Case("lightning_fsdp1_whole", beside="lightning_fsdp2_sharded"),
    Case("llama_in_torchtitans_pattern"),
    Case("a_loss_in_chunks_as_torchtitans"),
)


@pytest.fixture(scope="session")
def python(tmp_path_factory) -> str:
    """Makes an environment with the libraries, the packages of this one, and the wheel's .pth file. $SHOAL_LIBRARIES: a folder in which
    to keep it."""
    kept = os.environ.get("SHOAL_LIBRARIES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("libraries") / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    native = Path(shoal._native.__file__).parents[1]
    (site / "shoal-test.pth").write_text(f"{PACKAGE}\n{native}\n{sysconfig.get_paths()['purelib']}\n{PTH.read_text()}")
    words = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", REQUIREMENTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"the libraries of {REQUIREMENTS.name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(python)


@functools.cache
def losses(python: str, program: str, ours: bool) -> list[float]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE_", "PYTHONPATH", "SHOAL_FSDP"))}
    env |= {"OMP_NUM_THREADS": "1", "SHOAL_TIMEOUT": "60", "SHOAL_BINARY": binary(), "HF_HUB_OFFLINE": "1"}
    env |= {"SHOAL_FSDP": "1"} if ours else {"ACCELERATE_USE_CPU": "true"}
    words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "programs.py"), program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{program}: {done.stdout[-2000:]}{done.stderr[-6000:]}"
    assert done.stderr.count("Shoal shards this model") == ours, done.stderr
    said = re.search(r"^LOSSES (\[.*?\]) (\S+) (\S+)$", done.stdout, re.MULTILINE)
    assert said, done.stdout
    assert said[2].startswith("shoal.") == said[3].startswith("shoal.") == ours
    return json.loads(said[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_library_trains_and_resumes_as_without_shoal(python, case):
    assert losses(python, case.name, True) == pytest.approx(losses(python, case.beside or case.name, False), rel=case.rel)


def test_every_program_is_run():
    assert {case.name for case in CASES} == set(programs.PROGRAMS)
