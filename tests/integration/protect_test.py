"""Protected optimizer steps: a rank is killed anywhere in a step. It leaves the state of exactly one step, bit for bit."""

import re

import pytest
from launching.ranks import ForkedRanks

PROGRAM = """
import ctypes, os, signal, socket, sys, time
from pathlib import Path

import torch, torch.distributed as dist
from torch import nn

import shoal.optim
from shoal.exceptions import NotFound
from shoal.fsdp import fully_shard
from internals.fsdp import Moment, adopt, at_next, committed_step, protect

kind, folder, where, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
STEPS = 4

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
victim = os.fork()
rank = 1 if victim == 0 else 0
os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
torch.set_num_threads(1)
dist.init_process_group("gloo")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(33, 257), nn.Tanh(), nn.Linear(257, 1001), nn.Tanh(), nn.Linear(1001, 7))
if kind == "bf16":
    model.bfloat16()
for unit in (model[0], model[2], model):
    fully_shard(unit)
if kind == "sgd":
    optimizer = shoal.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
else:
    optimizer = shoal.optim.AdamW(model.parameters(), lr=1e-2)
protection = protect(model, optimizer)


def die_at(place, step):
    if rank == 1 and (place, step) == (where, when):
        os.kill(os.getpid(), signal.SIGKILL)


def die_inside(step):
    '''Dies at a place inside optimizer.step().'''
    for moment in (Moment.RECORDED, Moment.COMMITTED):
        at_next(moment, lambda _, place=moment.value: die_at(place, step))
    if (where, when) == ("inside", step):  # a store within a chunk ends the process: the page there is made read-only
        largest = max(views().values(), key=lambda p: p.to_local().numel())
        t = protection.home(largest, "momentum_buffer" if kind == "sgd" else "exp_avg")
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p((t.data_ptr() + t.nbytes // 2) & -4096), 4096, 1) == 0


def views():
    return {f"{u.state.name}.{p.name}": p.views.sharded for u in protection.root.units for p in u.parameters}


def state():
    found = {}
    for name, p in views().items():
        found[name, "param"] = p.to_local().detach().clone().flatten()
        for key, value in optimizer.state.get(p, {}).items():
            local = value.to_local() if hasattr(value, "to_local") else value
            found[name, key] = local.clone().flatten()
    return found


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def train():
    if where == "never":
        torch.save(state(), folder / f"{kind}-{rank}-0")
    for step in range(1, STEPS + 1):
        torch.manual_seed(10 * step + rank)
        hidden = model[:3](torch.randn(8, 33, dtype=model[0].weight.dtype))
        hidden.register_hook(lambda _: die_at("backward", step))
        model[3:](hidden).square().mean().backward()
        die_at("between", step)
        for p in model.parameters():
            p.grad.mul_(0.5)  # gradients are final at the step, not before
        if rank == 1 and step == when:
            die_inside(step)
        optimizer.step()
        die_at("after", step)
        optimizer.zero_grad()
        if where == "never":
            torch.save(state(), folder / f"{kind}-{rank}-{step}")


def names_of_records():
    found = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found.add(os.readlink(fd))
        except OSError:
            pass
    return {name for name in found if protection.record.key_of(1) in name}


if where == "never":
    train()
    dist.barrier()
    if rank == 1:
        os._exit(0)
    os.waitpid(victim, 0)
    sys.exit()
try:
    train()
    raise AssertionError("rank 0 has not failed")
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
os.waitpid(victim, 0)

dead = adopt(protection.actor, protection.record.key_of(1))
committed = committed_step([protection.words, dead.words], True)
print("words", protection.words, dead.words, "committed", committed, flush=True)
dead.settle(committed)
protection.settle(committed)
mine, theirs = (torch.load(folder / f"{kind}-{r}-{committed}") for r in (0, 1))
own = state()
assert all(same(own[key], value) for key, value in mine.items()), "rank 0 is not in the committed step"
names = {(u.index, i): f"{u.state.name}.{p.name}" for u in protection.root.units for i, p in enumerate(u.parameters)}
arrays = {(names[a.unit, a.parameter], a.name): a for a in dead.arrays()}
for key, value in theirs.items():
    assert same(arrays[key].values, value), (key, arrays[key].values, value)
wholes = views()
for (name, what), a in arrays.items():
    numel = wholes[name].numel()
    pieces = list(a.within(0, numel))
    if what != "step" and a.values.numel():
        assert sum(len(values) for _, values in pieces) == a.values.numel() and pieces[0][0] == numel - a.values.numel()
again = adopt(protection.actor, protection.record.key_of(1))
assert again.words[2] == committed
again.release()
assert names_of_records(), "a record that is not released by all is gone"
dead.release()
deadline = time.monotonic() + 60
while names_of_records():
    assert time.monotonic() < deadline, names_of_records()
    time.sleep(0.01)
try:
    adopt(protection.actor, protection.record.key_of(1))
    raise AssertionError("the record is still there")
except NotFound:
    print("adopted", flush=True)
os._exit(0)  # without its rank 1 no collective can end
"""


@pytest.fixture(scope="module")
def forked():
    with ForkedRanks("shoal.fsdp", "shoal.optim", OMP_NUM_THREADS="1", SHOAL_TIMEOUT="100") as forked:
        yield forked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


def run(forked, shoal_command, folder, kind, where, step):
    return forked.output([shoal_command.script(PROGRAM, "train.py"), kind, folder, where, step], env=shoal_command.env())


@pytest.mark.parametrize(
    ("kind", "where", "step"),
    [
        ("adamw", "backward", 2),
        ("adamw", "between", 3),
        ("adamw", "recorded", 1),
        ("adamw", "committed", 2),
        ("adamw", "inside", 3),
        ("adamw", "after", 2),
        ("bf16", "inside", 2),
        ("sgd", "inside", 2),
    ],
)
def test_what_a_killed_rank_leaves_is_the_state_of_one_step(forked, shoal_command, folder, kind, where, step):
    if not (folder / f"{kind}-1-4").exists():
        run(forked, shoal_command, folder, kind, "never", 0)
    said = run(forked, shoal_command, folder, kind, where, step)
    assert "ActorDied" in said, said
    assert "rank 1" in said, said
    committed = step - 1 if where in ("backward", "between") else step
    assert re.search(r"committed (\d+)", said)[1] == str(committed), said
    assert "adopted" in said
    if where == "inside":
        assert f"({step}, {step}, {step - 1})" in said, said
