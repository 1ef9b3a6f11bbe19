"""``shoal scale``, and nodes that come and drain, under a training that goes on."""

import signal

import pytest
from launching.leftovers import wait_until

TRAIN = """
import time
import shoal
from shoal.train import ScalingConfig, Trainer, get_context, report

def loop(config):
    print("joins", get_context().joins, flush=True)
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    from shoal.train import State, steps
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 15), torch.nn.ReLU(), torch.nn.Linear(15, 1))
    for unit in (model[0], model):
        fully_shard(unit)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    changes = []
    state = State(model=model, optimizer=optimizer, on_change=changes.append)
    for x, y in steps(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8), state, epochs=1_000_000):
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)  # leaves processor time to the command
        report({"loss": state.mean(loss), "workers": get_context().get_world_size()})
        if changes and changes[-1].generation == config["last"]:
            break
    return get_context().get_world_size()

if __name__ == "__main__":
    shoal.init(address="auto")
    reports = []
    trainer = Trainer(loop, train_loop_config={"last": LAST}, scaling_config=ScalingConfig(BOUNDS),
                      on_report=lambda m: reports or reports.append(print("it trains", flush=True)))
    result = trainer.fit()
    print([c.workers for c in result.changes], result.returns, result.metrics["loss"] < 100, flush=True)
"""


def train(shoal_command, bounds, last):
    return shoal_command.training(TRAIN.replace("BOUNDS", repr(bounds)).replace("LAST", str(last)))


def test_scale_changes_a_running_training_and_reports_the_pause(shoal_command):
    shoal_command.start(cpus=3)
    driver, job = train(shoal_command, (1, 3), last=3)
    same = shoal_command("scale", job, "--workers", "3")
    assert (same.returncode, same.stdout) == (0, f"Job {job} has 3 workers already.\n"), same
    said = shoal_command.json("scale", job, "--workers", "1")
    assert (said["schema"], said["job_id"], said["generation"], said["workers_before"], said["workers"]) == ("shoal.scale/1", job, 2, 3, 1)
    assert said["seconds"] > 0
    assert said["moved_bytes"] == 0  # ranks of one host share parameters and states
    wrong = shoal_command("scale", job, "--workers", "4")
    assert wrong.returncode == 1
    assert "4 workers are outside of num_workers=(1, 3)" in wrong.stderr
    assert [r["name"] for r in shoal_command.rows("jobs")] == ["driver0.py"]  # the command is no job

    def ended():
        workers = shoal_command.rows("workers", "-f", "state=EXITED")
        return [w["cause"]["message"] for w in workers if "TrainWorker" in w["role"]]

    wait_until(lambda: len(ended()) == 2, 60, "the end of the workers that leave")
    assert all("it was killed by shoal.kill" in why for why in ended())  # no crash
    assert "joins True" not in driver.out
    text = shoal_command("scale", job[:8], "--workers", "2")
    assert text.returncode == 0, text
    assert text.stdout.startswith(f"Job {job}: generation 3: 1 -> 2 workers, pause ")
    assert ", 0 B moved, " in text.stdout
    assert driver.code() == 0, driver.err
    assert driver.out.endswith("[1, 2] [2, 2] True\n"), driver.out
    assert "joins True" in driver.out, driver.out
    over = shoal_command("scale", job, "--workers", "1")
    assert over.returncode == 1
    assert "has no workers any more" in over.stderr
    assert shoal_command("stop").returncode == 0


def test_scale_names_a_job_that_it_cannot_scale(shoal_command):
    shoal_command.start(cpus=2)
    none = shoal_command("scale", "nosuch", "--workers", "1")
    assert none.returncode == 3
    assert "no job nosuch" in none.stderr
    assert shoal_command("scale", "nosuch").returncode == 2
    fixed, job = train(shoal_command, 1, last=9)
    wrong = shoal_command("scale", job, "--workers", "2")
    assert wrong.returncode == 1
    assert "the number of this training's workers is fixed" in wrong.stderr
    fixed.signal(signal.SIGTERM)
    fixed.code()
    idle = shoal_command.driver("""
        import shoal, sys
        shoal.init(address="auto")
        print("idle")
        sys.stdin.read()
        while True:
            shoal.wait([], timeout=1)
        """)
    idle.said("idle")
    (job,) = (r["id"] for r in shoal_command.rows("jobs") if r["state"] == "RUNNING")
    wrong = shoal_command("scale", job, "--workers", "2")
    assert wrong.returncode == 1
    assert f"job {job} runs no training" in wrong.stderr
    idle.signal(signal.SIGKILL)
    assert shoal_command("stop").returncode == 0


def test_a_training_too_large_for_the_cluster_names_options_of_a_trainer(shoal_command):
    shoal_command.start(cpus=1)
    driver = shoal_command.driver(TRAIN.replace("BOUNDS", "50").replace("LAST", "1"))
    assert driver.code() == 1
    assert "ask for less with ScalingConfig(num_workers=..." in driver.err, driver.err
    assert "--wait" not in driver.err
    assert shoal_command("stop").returncode == 0


@pytest.mark.parametrize("leaves", ["first", "second"])
def test_a_training_moves_to_a_new_node_and_off_one_that_drains(shoal_command, leaves):
    cluster = shoal_command.start(cpus=1)
    first = shoal_command.rows("nodes")[0]["id"]
    driver, _ = train(shoal_command, (1, 2), last=3)
    second = shoal_command.json("start", "--address", cluster.address, "--num-cpus", "1")["node"]
    driver.said("generation 2: 1 -> 2 workers")
    node = {"first": first, "second": second}[leaves]
    drain = shoal_command.popen("drain", node, "--deadline", "100", "--no-wait")
    assert drain.code() == 0, drain.err
    assert driver.code() == 0, driver.err
    assert "[2, 1] [1] True" in driver.out, driver.out
    assert "generation 3: 2 -> 1 workers" in driver.err
    assert shoal_command("stop").returncode == 0
