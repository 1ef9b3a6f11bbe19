"""Workers of an interpreter whose imports have started CUDA's driver, with a fake driver."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

BUILT = "tests/gpu/libfake_devices.so"
ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = next((str(p) for p in (ROOT / BUILT, ROOT / "bazel-bin" / BUILT) if p.exists()), BUILT)

STARTS = "import ctypes, os; ctypes.CDLL(os.environ['SHOAL_CUDA_LIBRARY']).cuInit(0)\n"
LOADS = "import ctypes, os; ctypes.CDLL(os.environ['SHOAL_CUDA_LIBRARY'])\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of modules that every interpreter can import."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SHOAL_CUDA_LIBRARY", LIBRARY)
    return folder


def python(program):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True).stdout.split("\n")


def test_the_import_that_starts_the_driver_is_named(site):
    (site / "loads.py").write_text(LOADS)
    (site / "starts.py").write_text(STARTS)
    (site / "outer.py").write_text("import loads, starts\n")
    program = """
        from internals.core import ImportWatch, driver_started

        print(driver_started())
        with ImportWatch() as watch:
            import loads
        print(driver_started(), watch.found)
        with ImportWatch() as watch:
            import outer, json.tool
        print(driver_started(), watch.found)
        with ImportWatch() as watch:
            pass
        print(watch.found)
        """
    before, loaded, started, late, _ = python(program)
    assert before == "False"
    assert loaded == "False "
    assert started == "True the import of starts"
    assert "at the interpreter's start" in late
    assert "outer" in late


def test_such_workers_are_fresh_and_the_node_and_doctor_name_the_import(shoal_command, site):
    condition = "import sys\nif 'shoal._zygote' in sys.orig_argv:\n    "
    (site / "sitecustomize.py").write_text(condition + STARTS)
    cluster = shoal_command.start(cpus=1)
    try:
        script = shoal_command.script("import sys\nprint('started as', sys.orig_argv[1])\n")
        done = shoal_command("submit", "--address", cluster.address, "--num-workers", "1", str(script))
        assert "started as -c" in done.stdout, done
        logs = "".join(path.read_text() for path in (cluster.session / "logs").glob("node*"))
        assert "cannot be forked: an import at the interpreter's start (sitecustomize" in logs
    finally:
        shoal_command("stop", "--address", cluster.address)
    done = shoal_command("doctor")
    (forks,) = (c for c in shoal_command.json("doctor", code=done.returncode)["checks"] if c["name"] == "forks")
    assert (forks["verdict"], "sitecustomize" in forks["found"], "function" in forks["fix"]) == ("warning", True, True)
