"""The dashboard in Debian's Chromium: each page during a run with a straggler, of an exported file, and of a cluster.

Not part of ``bazel test //...``: it installs requirements-browser.txt. The screenshots are outputs of the test. First paints are printed as
a report.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from serving import serve
from synthetic_run import SyntheticRun

ALL = ["run", "step", "memory", "workers", "actors", "events", "checkpoints", "logs", "health"]


def beside(name: str) -> Path:
    return next(p for p in (Path(name), Path(__file__).parents[2] / name) if p.exists())


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    chromium = shutil.which("chromium")
    assert chromium, "this test needs Debian's chromium: apt-get install chromium"
    folder = tmp_path_factory.mktemp("browser") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    words = [folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-r", beside("requirements-browser.txt")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"requirements-browser.txt cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    outputs = Path(os.environ.get("TEST_UNDECLARED_OUTPUTS_DIR") or tmp_path_factory.mktemp("screenshots"))

    def look(url: str, kind: str) -> dict:
        words = [folder / "bin" / "python", Path(__file__).parent / "browsing.py", url, outputs, chromium, kind]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        print(f"{kind}: {seen['paint_ms']}, screenshots in {outputs}")
        assert seen["console"] == []
        assert seen["foreign"] == []
        return seen

    return look


class Training(threading.Thread):
    """Appends steps to the run until `over` is set."""

    def __init__(self, run: SyntheticRun):
        super().__init__(daemon=True)
        self.run_, self.over = run, threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.run_.step_us / 1e6):
            self.run_.advance(1)
            self.run_.keep_up()


def test_each_page_of_a_run_that_goes_on(shoal_command, tmp_path, browse):
    steps, step_us = 400, 180_000
    start = time.time_ns() // 1000 - int(steps * step_us * 1.25)
    run = SyntheticRun(tmp_path / "slow", trouble="straggler", start=start, step_us=step_us, own_pid=True)
    run.advance(steps)
    run.keep_up()
    board = serve(shoal_command, "--run", run.folder)
    training = Training(run)
    training.start()
    seen = browse(board.url, "run")
    training.over.set()
    training.join()
    assert seen["shown"] == ALL
    assert seen["trace"] == [0, 1, 2, 3]
    assert "exposed communication" in seen["tip"]
    assert seen["title"] == "slow · Shoal"
    assert re.match(r"rank 3 on host b computes 3\d % slower since step 20\d", seen["verdict"], re.IGNORECASE), seen["verdict"]


@pytest.mark.parametrize(("trouble", "ranks"), [("killed", 64), ("hostile", 1)])
def test_an_exported_file_without_a_server(shoal_command, tmp_path, browse, trouble, ranks):
    run = SyntheticRun(tmp_path / "run", ranks=ranks, hosts=min(ranks, 8), trouble=trouble)
    run.advance(120)
    run.end(0)
    done = shoal_command("dashboard", "--run", run.folder, "--export", tmp_path / "one.html")
    assert done.returncode == 0, done.stderr
    seen = browse((tmp_path / "one.html").as_uri(), f"{trouble}-ended")
    assert seen["shown"] == ALL
    assert seen["title"] == "run · Shoal"


def test_actors_of_a_cluster_and_why_they_wait(shoal_command, browse):
    shoal_command.start(cpus=2)
    driver = shoal_command.driver("""
        import signal

        import shoal

        shoal.init("auto")

        @shoal.remote
        class Counter:
            def value(self):
                print("it counts")
                return 1

        counter = Counter.remote()
        print(shoal.get(counter.value.remote()))
        large = Counter.options(num_cpus=64).remote()
        print("it waits")
        signal.pause()
    """)
    driver.said("it waits")
    board = serve(shoal_command)
    seen = browse(board.url, "cluster")
    assert "CPU" in seen["why"]
    driver.signal(signal.SIGTERM)
    driver.code()
    assert shoal_command("stop").returncode == 0
