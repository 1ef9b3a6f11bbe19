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
from launching.commands import LIMIT_S
from launching.leftovers import wait_until
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

    def look(url: str, kind: str, *run: str) -> dict:
        words = [folder / "bin" / "python", Path(__file__).parent / "browsing.py", url, outputs, chromium, kind, *run]
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


# Rank 1 sleeps in each forward. The last rank kills itself once, and the others go on without it.
TRAIN = """
import os, pathlib, signal, sys, time
import shoal
from shoal.train import ScalingConfig, Trainer, get_context, report

def loop(config):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from shoal.checkpoint import Checkpoints
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State, steps

    torch.manual_seed(0)
    rank = get_context().get_world_rank
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    for unit in (*model, model):
        fully_shard(unit)
    model[1].register_forward_hook(lambda *_: time.sleep(config["sleep"]) if rank() == 1 else None)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    state = State(model=model, optimizer=optimizer)
    folder = pathlib.Path(config["folder"])
    saves = Checkpoints(folder / "checkpoints", every=50, keep=3)
    x = torch.randn(4096, 64)
    for (batch,) in steps(DataLoader(TensorDataset(x), batch_size=16), state, epochs=1_000_000):
        loss = (model(batch) - batch.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = state.mean(loss)
        report({"loss": value, "lr": 1e-3})
        if saves.should_save(state.step):
            saves.save(state.step, model, optimizer, state=state.state_dict()).wait()
        if state.step == 40:
            print(f"rank {rank()} has trained 40 steps", flush=True)
        if state.step == 60 and rank() == 3 and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if state.mean(float((folder / "over").exists())) > 0:
            break

if __name__ == "__main__":
    shoal.init("auto")
    config = {"folder": sys.argv[1], "sleep": 0.06}
    print(Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig((2, 4))).fit().metrics, flush=True)
"""
SLOW = r"rank 1 (on host \S+ )?computes \d+ % slower (at least )?since step \d+"


def check_pages(seen: dict, living: bool) -> None:
    """The pages name the slow rank, the reason, and the dead rank."""
    text = seen["text"]
    assert seen["shown"] == ALL
    assert re.search(SLOW, seen["verdict"], re.IGNORECASE), seen["verdict"]
    assert "sleeps or waits there" in seen["verdict"]  # why
    for page in ALL:
        assert re.search(SLOW, text[page], re.IGNORECASE), page
    assert re.match(r"1\s", seen["beside"]), seen["beside"]  # the slow rank is the first one of those beside each other
    assert "exposed communication" in text["run"]
    assert "death" in text["run"]  # a mark on each chart
    assert "loss" in text["run"]
    assert "of rank 1" in text["step"]  # on the critical path
    assert "rank 0" in text["memory"]
    assert "Memory by kind" in text["memory"]
    assert re.search(r"rank 3 .*(died|killed)", text["events"]), text["events"]
    assert "SIGKILL" in text["events"]
    assert "0 steps lost" in text["events"]
    assert "{" not in text["events"]  # sentences, no fields
    assert re.search(r"Go on from step \d+", text["checkpoints"])
    assert "shoal.checkpoint.load(" in text["checkpoints"]
    assert "CPU pressure" in text["health"]
    assert seen["wide"] == []
    if living:
        assert "TrainWorker" in text["actors"]
        assert "SIGKILL" in text["actors"]  # why it is dead
        assert "has trained 40 steps" in text["logs"]


def test_a_training_with_a_slow_rank_and_a_killed_one(shoal_command, tmp_path, browse):
    """Each page while it trains, of its folder afterwards, and of an exported file."""
    script = shoal_command.script(TRAIN, "train.py")
    folder = shoal_command.home / "shoal-run" / "slow"
    job = shoal_command.popen("run", "--driver", "--nproc", "4", "--run-folder", folder, script, tmp_path)

    def slow() -> bool:
        if job.process.poll() is not None:
            raise AssertionError(job.out + job.err)
        done = shoal_command("show", folder, "--json")
        said = json.loads(done.stdout) if done.returncode == 0 else {"step": 0, "verdicts": []}
        return said["step"] > 120 and any(v["code"] == "straggler" for v in said["verdicts"])

    wait_until(slow, LIMIT_S, "a straggler")
    check_pages(browse(serve(shoal_command).url, "trains", "slow"), living=True)
    (tmp_path / "over").touch()
    assert job.code() == 0, job.err
    board = serve(shoal_command, "--run", folder)
    check_pages(browse(board.url, "trains-ended"), living=False)
    board.running.signal(signal.SIGINT)
    board.running.code()
    done = shoal_command("dashboard", "--run", folder, "--export", tmp_path / "one.html")
    assert done.returncode == 0, done.stderr
    check_pages(browse((tmp_path / "one.html").as_uri(), "trains-exported"), living=False)


def test_a_run_that_has_just_begun_says_what_is_missing(shoal_command, tmp_path, browse):
    run = SyntheticRun(tmp_path / "new", ranks=2, start=time.time_ns() // 1000 - 2_000_000, own_pid=True)
    run.keep_up()
    seen = browse(serve(shoal_command, "--run", run.folder).url, "empty")
    assert "No step has ended yet" in seen["text"]["run"]
    assert "No step is recorded in detail yet" in seen["text"]["step"]
    assert "This run has saved no checkpoint" in seen["text"]["checkpoints"]


def test_a_page_whose_server_has_gone_stops_and_says_so(shoal_command, tmp_path, browse):
    run = SyntheticRun(tmp_path / "run", ranks=2)
    run.advance(40)
    board = serve(shoal_command, "--run", run.folder)
    seen = browse(board.url, "gone", str(board.running.pid))
    assert "this page has stopped" in seen["lost"]
    assert seen["later_requests"] == 0


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
