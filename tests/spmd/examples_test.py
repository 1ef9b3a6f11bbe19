"""The examples of shoal.spmd, and its README's program. Each example compares its losses with plain torch and fails if they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import run
from launching.ranks import fresh

import shoal.spmd

EXAMPLES = [Path("examples", f"spmd_{name}.py").absolute() for name in ("guide", "fsdp", "resnet", "2d")]
README = next(p for p in (Path("python/shoal/spmd/README.md"), Path(shoal.spmd.__file__).with_name("README.md")) if p.exists())
# Runs each program as `python EXAMPLE` would, but imports torch once for all.
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


def printed(programs, processes=0, start=run, **more):
    done = start(programs, processes, SHOAL_SPMD_DEVICES="4", **more)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def losses(text):
    """The ten losses that each example printed."""
    found = [float(loss) for loss in re.findall(r"^step \d+ loss (\d+\.\d{6})$", text, re.MULTILINE)]
    assert len(found) == 10 * len(EXAMPLES), text
    return [found[i : i + 10] for i in range(0, len(found), 10)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program that runs all examples (RUNNER), and the examples' paths."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "runner.py").write_text(RUNNER)
    (folder / "readme.py").write_text(re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1])
    return [str(folder / "runner.py"), str(folder / "readme.py"), *map(str, EXAMPLES)]


@pytest.fixture(scope="module")
def alone(programs):
    """The output of the examples in one process with four devices."""
    return printed(programs)


def test_examples_run_in_one_process_with_four_devices(alone):
    assert alone.count("as plain torch") == len(EXAMPLES)
    assert alone.endswith("end\nof the last step\n")  # printed when the process exits
    assert all(of[-1] < 0.8 * of[0] for of in losses(alone))
    of_readme = [float(loss) for loss in re.findall(r"^step \d+ loss (\d+\.\d{3})$", alone, re.MULTILINE)]
    assert len(of_readme) == 20
    assert of_readme[-1] < 0.5 * of_readme[0]


def expect_same_losses(said, alone):
    for example, ours, others in zip(EXAMPLES, losses(said), losses(alone), strict=True):
        # With a process per device, the units of spmd_fsdp.py run on the engine of shoal.fsdp, which sums in another order.
        assert ours == (pytest.approx(others, rel=1e-5) if example.stem == "spmd_fsdp" else others), example


def test_examples_run_in_two_processes_of_two_devices(programs, alone):
    said = printed(programs, processes=2)
    assert said.count("as plain torch") == len(EXAMPLES)
    expect_same_losses(said, alone)


def test_examples_run_under_a_controller_of_two_ranks(programs, alone, home):
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


# ---- a script of torch_xla, unchanged -------------------------------------------------------------------------------------------------

PTH = next(p for p in (Path(m) / "wheel" / "shoal-fsdp.pth" for m in (Path(shoal.spmd.__file__).parents[2], "python")) if p.exists())
# Does what site does in an environment that has the wheel: runs the .pth file.
STARTER = f"""
import runpy, site, sys
site.addsitedir({str(PTH.parent)!r})
assert "torch" not in sys.modules
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with the README's script of torch_xla, and a starter that runs the .pth file before it."""
    folder = tmp_path_factory.mktemp("theirs")
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert "shoal" not in program
    (folder / "train.py").write_text(program)
    (folder / "starter.py").write_text(STARTER)
    return folder


def losses_of(text):
    found = [float(loss) for loss in re.findall(r"loss (\d+\.\d{3})$", text, re.MULTILINE)]
    assert len(found) == 20, text
    assert found[-1] < 0.5 * found[0]
    return found


@pytest.fixture(scope="module")
def their_losses(theirs):
    """The script's losses in one process, when ``python -m shoal.spmd.run`` starts it."""
    return losses_of(printed(["-m", "shoal.spmd.run", str(theirs / "train.py")], start=fresh))


@pytest.mark.parametrize(("way", "processes"), [("variable", 0), ("variable", 2)])
def test_a_script_of_torch_xla_runs_unchanged(theirs, their_losses, way, processes):
    said = printed([str(theirs / "starter.py"), str(theirs / "train.py")], processes, fresh, SHOAL_SPMD="1")
    assert losses_of(said) == pytest.approx(their_losses, abs=2e-3)


def test_a_script_of_torch_xla_is_submitted_unchanged(theirs, their_losses, shoal_command):
    done = shoal_command("submit", "--num-workers", "2", theirs / "train.py", env=shoal_command.env(SHOAL_SPMD="1", SHOAL_SPMD_DEVICES="4"))
    assert done.returncode == 0, done
    assert losses_of(done.stdout) == pytest.approx(their_losses, abs=2e-3)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("on", "2.9.0+shoal 2.9.0+shoal False"),
        ("off", "No module named 'torch_xla'"),
        ("2", "SHOAL_SPMD is 1, true, on or yes, or 0, false, off, no or empty, not '2'"),
    ],
)
def test_the_variable_is_on_or_off(value, said):
    program = (
        f"import site, sys; site.addsitedir({str(PTH.parent)!r}); from importlib import metadata, util; there = 'torch' in sys.modules; "
        "util.find_spec('torch_xla') and metadata.version('torch_xla'); import torch_xla; from torch_xla import runtime; "
        "print(torch_xla.__version__, metadata.version('torch_xla'), there)"
    )
    done = fresh(["-c", program], SHOAL_SPMD=value)
    assert said in (done.stdout if value == "on" else done.stderr.splitlines()[-1]), done


def test_run_prints_its_usage(theirs):
    for words, text in (
        ([], "usage: python -m shoal.spmd.run"),
        (["--lr"], "--lr is no option of this command"),
        (["nowhere.py"], "no file nowhere.py"),
    ):
        done = fresh(["-m", "shoal.spmd.run", *words])
        assert (done.returncode != 0, text in done.stderr) == (True, True), done
