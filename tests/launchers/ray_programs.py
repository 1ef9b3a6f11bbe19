"""Programs of a cluster of Ray: ray_programs.py cluster FOLDER, or ray_programs.py CASE as a driver in it."""

import functools
import json
import os
import signal
import sys
import time

import ray
import torch
import torch.distributed as dist
from ray.cluster_utils import Cluster
from torch import nn

import shoal.ray
from shoal.fsdp import fully_shard
from shoal.optim import AdamW
from shoal.train import get_context, report

CASES = {}
STEPS, RANKS = 4, 4


def case(function):
    CASES[function.__name__] = function
    return function


def cluster(folder: str) -> None:
    """Two nodes of Ray on this host, until the end of stdin."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "temp_dir": folder, "include_dashboard": False})
    made.add_node(num_cpus=2)
    made.wait_for_nodes()
    print("ADDRESS", made.address, flush=True)
    sys.stdin.read()
    made.shutdown()


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 3))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def train(config: dict) -> dict:
    """A loop as under torchrun. config: the number of steps, and the rank that fails after three of them."""
    dist.init_process_group("gloo")
    model = model_of()
    for unit in (model[0], model):
        fully_shard(unit)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    here = get_context()
    for step in range(config["steps"]):
        loss = model(batch(step, here.world_rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        report({"step": step, "loss": mean.item() / here.world_size})
        if step == 2:
            print(f"rank {here.world_rank} trains in process {os.getpid()}", flush=True)
            if here.world_rank == config.get("victim"):
                fail(config["how"])
    return {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")}


def fail(how: str) -> None:
    if how == "raise":
        try:
            raise KeyError("the first cause")
        except KeyError as error:
            raise ValueError("the second one") from error
    os.kill(os.getpid(), signal.SIGKILL)


def losses_of_one_process() -> list[float]:
    model, losses = model_of(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        loss = torch.stack([model(batch(step, rank)).square().mean() for rank in range(RANKS)]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def failure(*args, **options) -> dict:
    try:
        shoal.ray.run(*args, **options)
    except Exception as error:
        return {"classes": [cls.__name__ for cls in type(error).__mro__], "text": str(error), "left": wait_for_nothing_left()}
    return {}


def wait_for_nothing_left() -> list[str]:
    """Returns what a run has left in Ray, once all resources are free."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        groups = [g["state"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
        total, free = ray.cluster_resources(), ray.available_resources()
        busy = [name for name in ("CPU", "GPU") if free.get(name, 0) != total[name]]
        if not groups + busy:
            return []
        time.sleep(0.1)
    return groups + busy


@case
def trains():
    reports = []
    result = shoal.ray.run(train, {"steps": STEPS}, num_workers=RANKS, placement_strategy="SPREAD", on_report=reports.append)
    return {
        "losses": [m["loss"] for m in result.metrics_history],
        "expected": losses_of_one_process(),
        "reports": reports == result.metrics_history and result.metrics == reports[-1],
        "returns": result.returns,
        "left": wait_for_nothing_left(),
    }


def reports_from_one_dict() -> torch.Tensor:
    metrics, weight = {"step": -1}, torch.zeros(2000)
    for step in range(3):
        metrics["step"] = step
        metrics["weight"] = weight.add_(1)
        report(metrics)
    return weight.add_(1)


@case
def keeps_reports():
    reports = []
    result = shoal.ray.run(reports_from_one_dict, on_report=reports.append)
    histories = [[[m["step"], m["weight"][-1].item()] for m in history] for history in (result.metrics_history, reports)]
    return [*histories, result.returns[0][-1].item()]


class OfRanksOnly:
    """A value that can be loaded in its own process alone."""

    def __reduce__(self):
        return load_in, (os.getpid(),)


def load_in(pid: int) -> OfRanksOnly:
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'only_in_ranks'")
    return OfRanksOnly()


@case
def is_unreadable():
    """Results and reports that the driver cannot load, or that cannot be sent."""
    return {
        "result": failure(OfRanksOnly, num_workers=2),
        "report": failure(lambda: report({"a": OfRanksOnly()})),
        "report on its way": failure(lambda: report({"a": OfRanksOnly()}), on_report=print),
        "cannot be sent": failure(sys._getframe),
    }


@case
def raises():
    return failure(train, {"steps": 100_000, "victim": 1, "how": "raise"}, num_workers=2)


@case
def dies():
    return failure(train, {"steps": 100_000, "victim": 1, "how": "kill"}, num_workers=2, placement_strategy="STRICT_SPREAD")


@case
def is_refused():
    """Runs that do not begin."""
    return {
        "too many": failure(train, {"steps": 1}, num_workers=8, resources_per_worker={"CPU": 2}, placement_timeout=1),
        "elastic": failure(train, {"steps": 1}, num_workers=(1, 2)),
        "strategy": failure(train, {"steps": 1}, placement_strategy="pack"),
        "no device": failure(train, {"steps": 1}, use_gpu=True),
        "no resource": failure(train, {"steps": 1}, resources_per_worker={"CPU": 0}),
    }


@case
def does_not_start():
    """Processes of workers begin with a hook that waits for a folder."""
    folder = os.environ["TEST_FOLDER"]

    def wait_for_folder() -> None:
        while not os.path.exists(folder):
            time.sleep(0.1)

    ray.init(logging_level="ERROR", runtime_env={"worker_process_setup_hook": wait_for_folder})
    try:
        return failure(train, {"steps": 1}, placement_timeout=3)
    finally:
        os.mkdir(folder)


@case
def has_variables():
    """Returns a rank's values of two variables. The driver sets both, and Ray's job sets the first one, which comes first."""
    ray.init(logging_level="ERROR", runtime_env={"env_vars": {"SHOAL_TIMEOUT": "50"}})
    return shoal.ray.run(lambda: [os.environ[name] for name in ("SHOAL_TIMEOUT", "SHOAL_FSDP")]).returns


@case
def nothing():
    return wait_for_nothing_left()


@case
def goes_on():
    shoal.ray.run(train, {"steps": 1_000_000}, num_workers=2)


@case
def libraries():
    """Their programs shard with Shoal by SHOAL_FSDP=1, which ranks inherit."""
    names = ("accelerate_fsdp2_sharded", "lightning_fsdp2_sharded")
    return {name: shoal.ray.run(functools.partial(library, name), num_workers=2).returns for name in names}


def library(name: str) -> tuple[list[float], bool]:
    import programs  # late: torch's functions are replaced at the interpreter's start

    return programs.PROGRAMS[name](), "shoal.fsdp._module" in sys.modules


if __name__ == "__main__":
    if sys.argv[1] == "cluster":
        cluster(sys.argv[2])
    else:
        if sys.argv[1] not in ("does_not_start", "has_variables"):  # these have a runtime_env of their own
            ray.init(logging_level="ERROR")
        print("RESULT", json.dumps(CASES[sys.argv[1]]()), flush=True)
