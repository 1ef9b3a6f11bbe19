"""Safety of shared parameters: one rank is late, and its reads still give the values of the right version, bit for bit."""

import os
import signal
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shoal
from shoal.exceptions import ActorDiedError
from shoal.train import ScalingConfig, Trainer

STEPS, WORLD, SLEEP = 5, 3, 0.7


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(17, 31), nn.Tanh(), nn.Sequential(nn.Linear(31, 13), nn.Tanh()), nn.Linear(13, 5))


def batch(step, rank):
    g = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 17, generator=g), torch.randn(8, 5, generator=g)


def sharded(**options):
    from shoal.fsdp import fully_shard

    model = build()
    fully_shard(model[0], **options)
    fully_shard(model[2], **options)
    return fully_shard(model, **options)


def _plain(model, optimizer, state, step):
    optimizer.step()


def _clip_by_hand(model, optimizer, state, step):
    optimizer.step()
    for p in model.parameters():
        p.data.to_local().clamp_(-0.2, 0.2)  # a write that autograd's version counter does not see


def _ema_swap(model, optimizer, state, step):
    optimizer.step()
    local = [p.to_local().detach() for p in model.parameters()]
    ema = state.setdefault("ema", [t.clone() for t in local])
    for e, t in zip(ema, local, strict=True):
        e.lerp_(t, 0.5)
        kept = t.clone()
        t.copy_(e)
        e.copy_(kept)


def _sgd_by_hand(model, optimizer, state, step):
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.05 * p.grad


def _late_load(model, optimizer, state, step):
    optimizer.step()
    if step == 1:
        state["kept"] = {n: t.to_local().clone() for n, t in model.state_dict().items()}
    if step == 2:
        if state["sleeps"]:
            time.sleep(SLEEP)
        back = model.state_dict()
        for name, local in state["kept"].items():
            back[name] = torch.distributed.tensor.DTensor.from_local(
                local, back[name].device_mesh, back[name].placements, run_check=False, shape=back[name].shape, stride=back[name].stride()
            )
        model.load_state_dict(back)


UPDATES = {"step": _plain, "clip_by_hand": _clip_by_hand, "ema_swap": _ema_swap, "sgd_by_hand": _sgd_by_hand, "late_load": _late_load}


# a way to update, and the place in the step where rank 1 sleeps
CASES = [(u, w) for u in UPDATES for w in ("forward", "step")] + [("late_load", "load")]
UNDISTURBED = [(u, "nowhere") for u in UPDATES]


def train(update, where):
    rank = torch.distributed.get_rank()
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sleeps = rank == 1
    state, record = {"sleeps": sleeps and where == "load"}, []
    for step in range(STEPS):
        x, y = batch(step, rank)
        loss = F.mse_loss(model(x), y)
        if sleeps and step == 2 and where == "forward":
            time.sleep(SLEEP)
        loss.backward()
        record.append([p.grad.to_local().clone() for p in model.parameters()])
        UPDATES[update](model, optimizer, state, step)
        optimizer.zero_grad()
        if sleeps and step == 2 and where == "step":
            time.sleep(SLEEP)
    record.append([p.to_local().clone() for p in model.parameters()])
    return record


@pytest.fixture(scope="module", autouse=True)
def cluster(module_home):
    shoal.init(num_cpus=8)
    yield
    shoal.shutdown()


def run(function, world=WORLD, **config):
    return Trainer(function, train_loop_config=config, scaling_config=ScalingConfig(num_workers=world)).fit().returns


def train_all(config):
    return {case: train(*case) for case in UNDISTURBED + CASES}


@pytest.fixture(scope="module")
def trained():
    """The results of each case on each rank; one gang of ranks runs all cases."""
    return run(train_all)


@pytest.mark.parametrize(("update", "where"), CASES)
def test_a_late_rank_changes_no_bit(trained, update, where):
    for of_rank in trained:
        for got, expected in zip(of_rank[update, where], of_rank[update, "nowhere"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def evaluate_then_write(config):
    import torch.distributed as dist

    import shoal.fsdp

    model, record = sharded(), []
    late = config["sleeps"] and dist.get_rank() == 1

    def by_the_door():
        with shoal.fsdp.write(model):
            for p in model.parameters():
                p.data.to_local().mul_(2)

    def by_operators():
        for p in model.parameters():
            p.mul_(2)

    def by_foreach_operators():
        torch._foreach_mul_(list(model.parameters()), 2)

    def by_rows():
        for p in model.parameters():
            p.to_local().data.mul_(2)

    with torch.no_grad():
        for write in (by_the_door, by_operators, by_foreach_operators, by_rows, lambda: None):
            if late:  # the other ranks are about to write rows that this rank has not read yet
                time.sleep(0.3)
            record.append(model(torch.ones(1, 17)).clone())
            model.reshard()
            if late:
                time.sleep(0.3)
            write()
    return record


def test_a_write_after_an_evaluation_waits_for_all_readers():
    calm, late = run(evaluate_then_write, sleeps=False), run(evaluate_then_write, sleeps=True)
    assert all(torch.equal(a, b) for of_calm, of_late in zip(calm, late, strict=True) for a, b in zip(of_calm, of_late, strict=True))
    plain, expected = build(), []
    with torch.no_grad():
        for _ in range(5):
            expected.append(plain(torch.ones(1, 17)).clone())
            torch._foreach_mul_(list(plain.parameters()), 2)
    for got, want in zip(calm[0], expected, strict=True):
        torch.testing.assert_close(got, want)


def write_on_one_rank(config):
    import torch.distributed as dist

    model = sharded()
    with torch.no_grad():
        model(torch.ones(1, 17))
        model.reshard()
        if dist.get_rank() == 1:
            model[0].weight.mul_(2)
    model(torch.ones(1, 17)).sum().backward()


def test_a_write_on_one_rank_only_raises():
    with pytest.raises(shoal.exceptions.InvalidArgument, check=lambda e: e.reason == "Diverged"):
        run(write_on_one_rank)


def stale_backward(config):
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = model(torch.ones(2, 17)).sum(), model(torch.ones(2, 17)).sum()
    first.backward()  # the version stays readable, because the second backward still needs it
    second.backward()
    third = model(torch.ones(2, 17)).sum()
    optimizer.step()
    third.backward()


def test_a_backward_after_its_parameters_changed_raises():
    with pytest.raises(shoal.exceptions.InvalidArgument, check=lambda e: e.reason == "StaleBackward"):
        run(stale_backward)


def read_without_a_lease(config):
    kept = []
    model = sharded(lease_guard=config["guard"])
    model[0].register_forward_pre_hook(lambda m, a: kept.append(m.weight))
    model(torch.ones(1, 17)).sum().backward()
    whole = kept[0]
    reference = build()[0].weight
    if not config["guard"]:
        return bool(torch.equal(whole.detach(), reference.detach()))
    return whole.sum().item()


def test_reading_without_a_lease_gives_the_committed_value():
    assert run(read_without_a_lease, guard=False) == [True] * WORLD


def test_lease_guard_ends_a_reading_process_naming_unit_and_rank():
    with pytest.raises(ActorDiedError) as raised:
        run(read_without_a_lease, world=2, guard=True)
    text = str(raised.value)
    assert "SIGSEGV" in text
    assert "parameters of unit 0 on rank" in text
    assert "without a lease" in text


def train_until_killed(config):
    import torch.distributed as dist

    import shoal.fsdp

    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = dist.get_rank()
    for step in range(1000):
        x, y = batch(step, rank)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3 and rank == 0:
            handles = shoal.fsdp.shard_actor_handles()
            assert '"rank":2' in shoal.get(handles[2].describe.remote())
            rows = [r for r in _session().list("actors") if r["class"] == "ShardActor" and r["state"] == "ALIVE"]
            assert sum(int(r["attributes"]["rows"]) for r in rows) == sum(p.shape[0] for p in build().parameters())
            assert {r["generation"] for r in rows} == {1}
            if config["how"] == "kill":
                shoal.kill(handles[1])
        if step == 3 and rank == 1 and config["how"] == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
    return "never killed"


def _session():
    from internals.core import session

    return session()


def caught(config):
    try:
        train_until_killed(config)
    except ActorDiedError as error:
        return str(error)


def test_a_killed_shard_actor_fails_the_step_on_every_rank():
    for text in run(caught, how="kill"):
        assert "ShardActor rank 1" in text
        assert "killed by shoal.kill" in text


def test_a_killed_rank_is_named_on_all_ranks():
    with pytest.raises(ActorDiedError, match="SIGKILL"):
        run(train_until_killed, how="sigkill")


def different_models(config):
    import torch.distributed as dist

    from shoal.fsdp import fully_shard

    model = nn.Linear(4, 4 + dist.get_rank())
    fully_shard(model)
    model(torch.ones(1, 4))


def test_ranks_with_different_models_get_an_error():
    with pytest.raises(shoal.exceptions.InvalidArgument, match="same model"):
        run(different_models, world=2)


class _Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, with_b):
        return self.a(x) + (self.b(x) if with_b else 0)


def uses_some_on_some_ranks(config):
    import torch.distributed as dist

    from shoal.fsdp import fully_shard

    model = fully_shard(_Branches())
    x = torch.ones(1, 3)
    model(x, dist.get_rank() == 0).sum().backward()
    full = {n: None if p.grad is None else p.grad.full_tensor() for n, p in model.named_parameters()}
    return {n: None if g is None else g.tolist() for n, g in full.items()}


def test_unused_parameters_count_as_zero_or_have_no_gradient():
    for grads in run(uses_some_on_some_ranks, world=2):
        assert grads["a.bias"] == [1, 1]
        assert grads["b.bias"] == [0.5, 0.5]
        assert grads["c.bias"] is None
