"""State dicts of a sharded model and its optimizer through torch's own functions, and torch.compile: two ranks, one run."""

import functools
import tempfile

import pytest
import torch
from launching.trained import Uses, check, ranks, run
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor, distribute_tensor

WORLD = 2
use = Uses()


class Block(nn.Sequential):
    def forward(self, x):  # dynamo compiles this method, but not Sequential's own forward
        for module in self:
            x = module(x)
        return x


class Net(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        torch.manual_seed(0)
        self.inp = nn.Linear(6, 7)
        self.blocks = nn.ModuleList(Block(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(blocks))
        self.head = nn.Linear(7, 5)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def shard(model, **options):
    from shoal.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def rank():
    return torch.distributed.get_rank()


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def trained(model, optimizer, steps=2, begin=0):
    losses = []
    for step in range(begin, begin + steps):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@functools.cache
def plain():
    """A plain model and its optimizer after some steps, and the losses of two further steps."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trained(model, optimizer)
    whole = {name: p.detach().clone() for name, p in model.state_dict().items()}
    states = {n: {k: v.clone() for k, v in optimizer.state[p].items()} for n, p in model.named_parameters()}
    return whole, states, trained(model, optimizer, begin=2)


def pair(cls=torch.optim.AdamW):
    model = shard(Net())
    return model, cls(model.parameters(), lr=0.1)


def same(got, expected, what):
    torch.testing.assert_close(full(got), expected, rtol=1e-5, atol=1e-6, msg=lambda m: f"{what}: {m}")


# ---- whole state dicts ---------------------------------------------------------------------------------------------------------------


@use
def a_whole_state_dict_is_gathered_to_rank_0():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    model, optimizer = pair()
    trained(model, optimizer)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    parameters, states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)
    if rank() != 0:
        assert not parameters
        return
    whole, expected, _ = plain()
    for name, value in whole.items():
        same(parameters[name], value, name)
        for key, state in expected[name].items():
            same(states["state"][name][key], state, f"{key} of {name}")


@use
def a_whole_state_dict_is_loaded_from_rank_0():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    whole, states, losses = plain()
    model, optimizer = pair()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(whole) if rank() == 0 else {}, options=options)
    group = {k: v for k, v in optimizer.state_dict()["param_groups"][0].items() if k != "params"}
    loaded = {"state": {n: dict(s) for n, s in states.items()}, "param_groups": [{**group, "params": list(whole)}]}
    set_optimizer_state_dict(model, optimizer, loaded if rank() == 0 else {}, options=options)
    assert trained(model, optimizer, begin=2) == pytest.approx(losses, rel=1e-5)


@use
def a_file_is_mapped_and_each_rank_takes_its_rows():
    whole, _, _ = plain()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(whole, f"{folder}/whole.pt")
        with torch.device("meta"):
            model = shard(Net())
        loaded = torch.load(f"{folder}/whole.pt", mmap=True, weights_only=True, map_location="cpu")
        sharded = {n: nn.Parameter(distribute_tensor(loaded[n], p.device_mesh, p.placements)) for n, p in model.state_dict().items()}
        model.load_state_dict(sharded, assign=True)
        for name, p in model.named_parameters():
            same(p.detach(), whole[name], name)
        torch.distributed.barrier()


@use
def parameters_saved_one_by_one_are_whole_on_rank_0():
    model, optimizer = pair()
    trained(model, optimizer)
    whole, _, _ = plain()
    for name, p in model.state_dict().items():
        same(p, whole[name], name)  # same() calls full_tensor(), a collective, so every rank visits all parameters


# ---- torch.distributed.checkpoint ----------------------------------------------------------------------------------------------------


def _dcp(cls):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = [tempfile.mkdtemp() if rank() == 0 else None]
    torch.distributed.broadcast_object_list(folder)
    model, optimizer = pair(cls)
    trained(model, optimizer)
    parameters, states = get_state_dict(model, optimizer)
    assert all(isinstance(p, DTensor) for p in parameters.values())
    dcp.save({"model": parameters, "optimizer": states}, checkpoint_id=folder[0])
    expected = trained(model, optimizer, begin=2)

    model, optimizer = pair(cls)
    parameters, states = get_state_dict(model, optimizer)
    loaded = {"model": parameters, "optimizer": states}
    dcp.load(loaded, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert trained(model, optimizer, begin=2) == pytest.approx(expected, rel=1e-6)


@use
def saved_and_loaded_by_dcp():
    _dcp(torch.optim.AdamW)


@use
def saved_and_loaded_by_dcp_with_our_optimizer():
    from shoal.optim import AdamW

    _dcp(AdamW)


@use
def a_state_dict_between_forward_and_backward_is_sharded():
    model, _ = pair()
    loss = model(torch.randn(4, 6)).sum()
    assert all(isinstance(p, DTensor) for p in model.state_dict().values())
    loss.backward()


# ---- torch.compile -------------------------------------------------------------------------------------------------------------------


def _compiled(build):
    """Trains the model that ``build`` returns, and returns five losses. An error if a step after the second compiles."""
    torch._dynamo.reset()
    counters.clear()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = trained(model, optimizer)
    with torch._dynamo.config.patch(error_on_recompile=True):
        losses += trained(model, optimizer, steps=3, begin=2)
    return losses


def _eager(blocks=2):
    model = Net(blocks)
    return trained(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=5)


@use
def blocks_compiled_before_they_are_sharded():
    def build():
        model = Net()
        for block in model.blocks:
            block.compile(backend="aot_eager")
        return shard(model)

    assert _compiled(build) == pytest.approx(_eager(), rel=1e-5)


@use
def many_blocks_compiled_as_one_graph_each_before_they_are_sharded():
    """The blocks share compiled code, because they are alike: with ``fullgraph``, dynamo refuses a ninth compilation of one function."""

    def build():
        model = Net(blocks=10)
        for block in model.blocks:
            block.compile(backend="aot_eager", fullgraph=True)
        return shard(model)

    assert _compiled(build) == pytest.approx(_eager(blocks=10), rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@use
def blocks_wrapped_by_compile_before_they_are_sharded():
    def build():
        model = Net()
        for i, block in enumerate(model.blocks):
            model.blocks[i] = torch.compile(block, backend="aot_eager")
        return shard(model)

    assert _compiled(build) == pytest.approx(_eager(), rel=1e-5)


@use
def a_model_compiled_after_it_was_sharded():
    assert _compiled(lambda: torch.compile(shard(Net()), backend="aot_eager")) == pytest.approx(_eager(), rel=1e-5)
    assert counters["frames"]["total"] == 4  # as many as with FSDP2: hooks are no frames of their own


# ---- inference mode ------------------------------------------------------------------------------------------------------------------


@use
def state_dicts_taken_under_inference_mode():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    model, optimizer = pair()
    trained(model, optimizer)
    with torch.inference_mode():
        model(torch.ones(4, 6))
        state = model.state_dict()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        whole, _ = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
        inner = {name: value.clone() for name, value in model.blocks[0].state_dict().items()}
    kept = {name: value.full_tensor().clone() for name, value in state.items()}
    for name, value in plain()[0].items():
        torch.testing.assert_close(kept[name], value)
        torch.testing.assert_close(whole[name], value)
    assert inner.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    model_state = {name: value.clone() for name, value in model_state.items()}
    states = {name: {key: value.clone() for key, value in values.items()} for name, values in optimizer_state["state"].items()}
    assert trained(model, optimizer, begin=2) == pytest.approx(plain()[2], rel=1e-4)
    model, optimizer = pair()  # the loaded state can be trained on
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state | {"state": states})
    assert trained(model, optimizer, begin=2) == pytest.approx(plain()[2], rel=1e-4)


@use
def optimizer_states_of_fsdp1_taken_under_inference_mode():
    from shoal.fsdp1 import FullyShardedDataParallel as FSDP
    from shoal.fsdp1 import StateDictType

    for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
        model = FSDP(Net())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        trained(model, optimizer)
        with FSDP.state_dict_type(model, kind), torch.inference_mode():
            state = model.state_dict()
            FSDP.optim_state_dict(model, optimizer)
        for name, value in plain()[0].items():
            torch.testing.assert_close(full(state[name]), value)
        assert trained(model, optimizer, begin=2) == pytest.approx(plain()[2], rel=1e-4)


# ---- the run -------------------------------------------------------------------------------------------------------------------------


def all_uses():
    return run(use)


failed = ranks(all_uses, WORLD)


@pytest.mark.parametrize("name", use)
def test_use(name, failed):
    check(name, failed)
