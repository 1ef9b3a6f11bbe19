"""``Trainer.fit()`` under faults: signals, loops that raise, and killed ranks, drivers, nodes and heads."""

import os
import signal
import sys

import pytest
from launching.leftovers import alive, descendants, wait_until

# A training loop over a sharded model that reports each step. `how` is the fault of rank 1 after step 3.
TRAIN = """
import os, signal, sys, time
import shoal
from shoal.train import ScalingConfig, Trainer, get_context, report

def loop(config):
    import torch
    from torch import nn
    from shoal.fsdp import fully_shard
    from shoal.optim import AdamW
    if config["how"] == "stubborn":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 3))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for step in range(config["steps"]):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        report({"step": step})
        if step == 3 and get_context().get_world_rank() == 1:
            if config["how"] == "raise":
                raise ValueError("the cause")
            if config["how"] == "exit":
                sys.exit(3)
            if config["how"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if config["how"] == "return":
                return
        time.sleep(0.01)

def told(metrics):
    print(f"step {metrics['step']}.", flush=True)

if __name__ == "__main__":
    how, steps = sys.argv[1], int(sys.argv[2])
    shoal.init(*sys.argv[3:])
    trainer = Trainer(loop, train_loop_config={"how": how, "steps": steps}, scaling_config=ScalingConfig(num_workers=2), on_report=told)
    print("last", trainer.fit().metrics["step"], flush=True)
"""
FOREVER = 1_000_000


@pytest.fixture
def fit(shoal_command):
    """Starts TRAIN as a driver process, and returns once it has reported its first steps."""

    def start(how: str = "never", steps: int = FOREVER, *address: str, launcher=()):
        script = str(shoal_command.script(TRAIN, "fit.py"))
        driver = shoal_command.program([*(launcher or [sys.executable]), script, how, str(steps), *address])
        driver.said("step 2.")
        return driver

    return start


def everything(driver) -> set[int]:
    return {p for p in descendants(driver.pid) if alive(p)}


def gone(pids, within: float = 5.0) -> None:
    wait_until(lambda: not any(alive(p) for p in pids), within, f"the end of {pids}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_driver_ends_the_whole_job(fit, number):
    driver = fit()
    pids = everything(driver)
    assert len(pids) >= 4  # head and node, zygote, two ranks of the job
    driver.signal(number)
    assert driver.code() == -number
    gone(pids)
    if number == signal.SIGINT:
        assert driver.err.rstrip().endswith("KeyboardInterrupt")


def test_a_second_ctrl_c_leaves_nothing_behind(fit):
    driver = fit("stubborn")
    pids = everything(driver)
    driver.signal(signal.SIGINT)
    driver.said("KeyboardInterrupt")
    driver.signal(signal.SIGINT)
    driver.code()
    gone(pids)


def test_one_ctrl_c_ends_stubborn_ranks(fit):
    driver = fit("stubborn")
    pids = everything(driver)
    driver.signal(signal.SIGINT)
    assert driver.code() == -signal.SIGINT
    gone(pids)


@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("raise", ["ValueError: the cause", "in loop", "rank 1 of 2"]),
        ("exit", ["SystemExit: 3", "in loop"]),
        ("kill", ["ActorDiedError", "SIGKILL", "rank 1 of 2"]),
        (
            "return",
            [
                "ActorDiedError",
                "rank 1 has left",
                "waiting for the parameters of step 5",
                "look at the output of rank 1",
                "shoal.fsdp.join",
            ],
        ),
    ],
)
def test_fit_raises_the_error_that_ended_a_rank(fit, how, texts):
    driver = fit(how)
    pids = everything(driver)
    assert driver.code() == 1, driver.err
    for text in texts:
        assert text in driver.err, driver.err
    gone(pids)


def test_an_infeasible_worker_is_refused_before_any_start(shoal_command):
    driver = shoal_command.driver("""
        import shoal
        from shoal.train import ScalingConfig, Trainer
        shoal.init(num_cpus=4)
        Trainer(print, scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"GPU": 64})).fit()
        """)
    assert driver.code() == 1
    for text in ("ResourceExhausted", "GPU 64", "nearest fit", "shoal.init("):
        assert text in driver.err, driver.err
    assert driver.out == ""


def test_workers_with_gpus_are_refused_where_the_cluster_or_torch_has_none(shoal_command):
    driver = shoal_command.driver("""
        import os
        import shoal
        from shoal.train import ScalingConfig, Trainer

        def fit(**more):
            try:
                Trainer(print, scaling_config=ScalingConfig(num_workers=1, use_gpu=True, **more)).fit()
            except Exception as error:
                print(type(error).__mro__[1].__name__, "|", error)

        fit(resources_per_worker={"GPU": 2})
        shoal.init(num_cpus=4)
        fit()
        shoal.shutdown()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        shoal.init(num_cpus=4, num_gpus=1)
        fit()
        """)
    assert driver.code() == 0, driver.err
    for text in ("a worker trains on one device, not on 2", "GPU 1", "CUDA_VISIBLE_DEVICES", "finds no CUDA device on"):
        assert text in driver.out, driver.out


def test_no_actor_of_a_training_is_alive_behind_it(shoal_command):
    driver = shoal_command.driver("""
        import shoal
        from shoal.train import Trainer, report
        from shoal.util.state import list_actors

        def loop(config):
            report({})
            if config["fails"]:
                raise ValueError("the cause")

        shoal.init(num_cpus=4)
        for fails in (False, True):
            try:
                Trainer(loop, train_loop_config={"fails": fails}).fit()
            except ValueError:
                print("failed")
            print(sorted((a.class_name, a.state) for a in list_actors()))
        """)
    assert driver.code() == 0, driver.err
    dead = [("TrainReports", "DEAD"), ("TrainWorker", "DEAD")]
    assert driver.out == f"{dead}\nfailed\n{sorted(2 * dead)}\n"


def test_a_driver_may_be_a_single_torchrun_rank(shoal_command):
    of_torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "0", "WORLD_SIZE": "1"}
    driver = shoal_command.program([sys.executable, str(shoal_command.script(TRAIN, "fit.py")), "never", "3"], **of_torchrun)
    assert driver.code() == 0, driver.err
    assert driver.out.endswith("last 2\n")


def test_ranks_inherit_shoals_settings_unless_a_runtime_env_overrides(shoal_command):
    shoal_command.start(cpus=4)
    script = shoal_command.script("""
        import shoal
        from shoal.train import ScalingConfig, Trainer

        def loop():
            import os
            from torch.distributed.fsdp import fully_shard
            from internals.distributed import TIMEOUT
            return fully_shard.__module__, os.environ["SHOAL_FSDP"], TIMEOUT

        shoal.init(runtime_env={"env_vars": {"SHOAL_TIMEOUT": "66"}})
        print(Trainer(loop, scaling_config=ScalingConfig(num_workers=1)).fit().returns)
        """)
    done = shoal_command("submit", script, env=shoal_command.env(SHOAL_FSDP="1", SHOAL_TIMEOUT="77"))
    assert shoal_command("stop").returncode == 0
    assert done.stdout == "[('shoal.fsdp._fully_shard', '1', 66.0)]\n", done


def test_a_trainer_in_every_rank_of_a_gang_is_refused(shoal_command):
    done = shoal_command("submit", "--num-workers", "2", shoal_command.script(TRAIN, "fit.py"), "never", "3")
    assert done.returncode == 1, done
    for text in ("InvalidArgument", "of 2 already", "without --num-workers"):
        assert text in done.stderr, done


def test_running_steps_go_on_without_a_head(shoal_command, fit):
    cluster = shoal_command.start()
    driver = fit("never", 150, cluster.address)
    os.kill(cluster.pid("head"), signal.SIGKILL)
    before = driver.out.count("step")
    wait_until(lambda: driver.out.count("step") > before + 50 or driver.process.poll() is not None, 20, "more steps")
    assert driver.code() == 0, driver.err
    assert driver.out.rstrip().endswith("last 149")
    assert shoal_command("stop").returncode == 0


def test_stop_without_a_head_ends_a_running_step(shoal_command, fit):
    cluster = shoal_command.start()
    driver = fit("never", FOREVER, cluster.address)
    workers = everything_of(cluster)
    os.kill(cluster.pid("head"), signal.SIGKILL)
    assert shoal_command("stop").returncode == 0
    assert driver.code() == 1
    assert "ActorDiedError" in driver.err, driver.err
    gone(workers)


def everything_of(cluster) -> set[int]:
    node = cluster.pid("node")
    return {p for p in descendants(node) | {node} if alive(p)}


def test_a_killed_node_fails_fit_and_ends_its_ranks(shoal_command, fit):
    cluster = shoal_command.start()
    driver = fit("never", FOREVER, cluster.address)
    pids = everything_of(cluster)
    os.kill(cluster.pid("node"), signal.SIGKILL)
    assert driver.code() == 1
    assert "ActorDiedError" in driver.err, driver.err
    gone(pids)
    assert shoal_command("stop").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_submit_ends_a_training_job(shoal_command, fit, number):
    from internals.core import binary

    submit = fit(launcher=[binary(), "submit"])
    pids = everything(submit)
    submit.signal(number)
    assert submit.code() == 128 + number, submit.err
    gone(pids)
