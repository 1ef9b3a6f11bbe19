"""The examples of shoal.spmd, and its README's program. Each example compares its losses with plain torch and fails where they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fixtures import *  # noqa: F403
from launch import run

import shoal.spmd

EXAMPLES = [Path("examples", f"spmd_{name}.py").absolute() for name in ("guide", "fsdp", "resnet", "2d")]
README = next(p for p in (Path("python/shoal/spmd/README.md"), Path(shoal.spmd.__file__).with_name("README.md")) if p.exists())
# Each as `python EXAMPLE` would run it; torch is imported once for all.
RUNNER = """
import runpy, sys
import shoal.spmd.xla_model as xm
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
xm.add_step_closure(xm.master_print, ("of the last step",))
xm.master_print("end")
"""
THEIRS = {
    "shoal.spmd.runtime": "torch_xla.runtime",
    "shoal.spmd.xla_model": "torch_xla.core.xla_model",
    "shoal.spmd.parallel_loader": "torch_xla.distributed.parallel_loader",
    "shoal.spmd.fsdp.wrap": "torch_xla.distributed.fsdp.wrap",
    "shoal.spmd.fsdp import SpmdFullyShardedDataParallel": "torch_xla.experimental.spmd_fully_sharded_data_parallel import "
    "SpmdFullyShardedDataParallel",
    "shoal.spmd.fsdp": "torch_xla.distributed.fsdp",
    "shoal.spmd": "torch_xla.distributed.spmd",
}


def printed(programs, processes=0, **env):
    done = run(programs, processes, SHOAL_SPMD_DEVICES="4", **env)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def losses(text):
    """Per example its losses."""
    found = [float(loss) for loss in re.findall(r"^step \d+ loss (\d+\.\d{6})$", text, re.MULTILINE)]
    assert len(found) == 10 * len(EXAMPLES), text
    return [found[i : i + 10] for i in range(0, len(found), 10)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program that runs them all, and their paths."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "runner.py").write_text(RUNNER)
    (folder / "readme.py").write_text(re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1])
    return [str(folder / "runner.py"), str(folder / "readme.py"), *map(str, EXAMPLES)]


@pytest.fixture(scope="module")
def alone(programs):
    """Their output in one process that plays four devices."""
    return printed(programs)


def test_in_one_process_that_plays_four_devices(alone):
    assert alone.count("as plain torch") == len(EXAMPLES)
    assert alone.endswith("end\nof the last step\n")  # at exit
    assert all(of[-1] < 0.8 * of[0] for of in losses(alone))
    of_readme = [float(loss) for loss in re.findall(r"^step \d+ loss (\d+\.\d{3})$", alone, re.MULTILINE)]
    assert len(of_readme) == 20
    assert of_readme[-1] < 0.5 * of_readme[0]


def expect_same_losses(said, alone):
    for example, ours, others in zip(EXAMPLES, losses(said), losses(alone), strict=True):
        # The engine of shoal.fsdp, which runs units where each rank is a process, adds up in another order.
        assert ours == (pytest.approx(others, rel=1e-5) if example.stem == "spmd_fsdp" else others), example


def test_in_two_processes_of_two_devices(programs, alone):
    said = printed(programs, processes=2)
    assert said.count("as plain torch") == len(EXAMPLES)
    expect_same_losses(said, alone)


def test_under_one_controller_of_two_ranks(programs, alone, home):
    expect_same_losses(printed(programs, SHOAL_SPMD_WORKERS="2"), alone)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_only_imports_differ_from_a_script_of_torch_xla(example):
    shoal.spmd.install()
    ours = [line for line in example.read_text().splitlines() if re.match(r"(import|from) ", line)]
    theirs = list(ours)
    for name, of in THEIRS.items():
        theirs = [re.sub(rf"\b{re.escape(name)}(?![.\w])", of, line) for line in theirs]
    assert "shoal" not in "\n".join(theirs)
    found = [{}, {}]
    for lines, names in zip((ours, theirs), found, strict=True):
        exec("\n".join(lines), names)
        names.pop("__builtins__")
    assert found[0] == found[1]
