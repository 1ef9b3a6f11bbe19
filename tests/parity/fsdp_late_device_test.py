"""Units outside of an arena on a device that orders work as badly as CUDA's rules allow, on the CPU: ``late_device``.

The cases are a slice of those of ``fsdp_devices_test``, and failures of the program. Each compares its results with plain training, and
fails if no mark orders two uses of memory. ``SHOAL_SEEDS`` (``./dev test --all``) takes all cases on 1, 2 and 4 ranks, with a seed per 500,
of which 4 ranks run each tenth. The ranks start once for all seeds, and only the first seed is compared with other programs: the others
have its bits. ``SHOAL_SEED=24`` replays one seed, ``24-60`` a range, with all cases.
"""

import functools
import os
from types import SimpleNamespace
from unittest import mock

import compared_runs
import fsdp2_combined_test
import fsdp2_extensions_test
import fsdp2_test
import pytest
import torch
from compared_runs import Cases, Net, Seen, run_cases, sharded, train
from fsdp_devices_test import OURS_ALONE
from late_device import LateDevice, LateStreams
from launching.trained import check, run, worlds
from torch import nn
from torch.distributed.tensor import DTensor

import shoal.fsdp

WHOLE = "SHOAL_SEEDS" in os.environ or "SHOAL_SEED" in os.environ
WORLDS = (1, 2, 4) if WHOLE else (2,)
if "SHOAL_SEED" in os.environ:
    first, _, last = os.environ["SHOAL_SEED"].partition("-")
    SEEDS = list(range(int(first), int(last or first) + 1))
else:
    SEEDS = list(range(max(1, int(os.environ["SHOAL_SEEDS"]) // 500) if WHOLE else 1))
case = Cases()


class Refused(Exception):
    pass


def _refuse(*args):
    raise Refused


@case(theirs=False)
def a_forward_that_fails(api):
    """Gathers under way are given up."""
    model = sharded(api, Net())
    hook = model.blocks[1].register_forward_hook(_refuse)
    with pytest.raises(Refused):
        model(torch.ones(4, 8))
    hook.remove()
    for module in () if api.plain else (model, *model.blocks):
        module.reshard()
    return train(api, model)


@case(theirs=False)
def a_backward_that_fails(api):
    """Reductions under way are given up."""
    model = sharded(api, Net())
    hook = model.blocks[1].register_full_backward_hook(_refuse)
    with pytest.raises(Refused):
        model(torch.ones(4, 8)).sum().backward()
    hook.remove()
    model.zero_grad()
    for module in () if api.plain else (model, *model.blocks):
        module.reshard()
    return train(api, model)


@case()
def unsharded_ahead(api):
    """The program begins gathers, and waits for some of them."""
    model = sharded(api, Net())

    def begin(model, *args):
        if not api.plain:
            handles = [block.unshard(async_op=True) for block in model.blocks]
            handles[0].wait()

    model.register_forward_pre_hook(begin)
    return train(api, model)


@case(theirs=False)
def gradients_added_along_the_tree(api):
    """Ranks exchange their gradients, as with deterministic=True."""
    model = sharded(api, Net())

    def begin(*args):
        from internals.fsdp import Part, state_of

        ranks = torch.distributed.get_world_size()
        for s in filter(None, map(state_of, model.modules())):
            s.settings.part = Part(torch.distributed.get_rank(), ranks, last=True)

    if not api.plain:
        model.register_forward_pre_hook(begin)
    return train(api, model)


def steps_copied_to_the_host():
    """Rows and states are copied behind each step, beside the next forward and backward."""
    from internals.fsdp import CopiedStep, managed, states_of, streams, transfers

    from shoal.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    pairs, states = [(managed(p), managed(p)) for p in model.parameters()], states_of(optimizer)
    step = None
    for _ in range(3):
        model(torch.ones(2, 4)).square().sum().backward()
        if step is not None:
            step.await_all()
        optimizer.step()
        with mock.patch.object(streams, "pinned_like", torch.empty_like):  # only a driver of CUDA pins memory
            step = CopiedStep.begin(transfers.of(torch.device("cpu")), pairs, optimizer, states)
        optimizer.zero_grad()
    step.await_all()
    with_rows = sum(p.to_local().numel() > 0 for p in model.parameters())
    assert [name for _, name, _ in step.arrays] == with_rows * ["param", "exp_avg", "exp_avg_sq"]
    for p, name, values in step.arrays:
        assert torch.equal(values, (p if name == "param" else optimizer.state[p][name]).to_local().detach())
    assert [float(values["step"]) for _, values, _ in step.others] == 6 * [3.0]


class Counting(torch.optim.Optimizer):
    """Counts its steps on the device."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if "step" not in self.state[p]:
                gradient = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                self.state[p]["step"] = gradient.sum() * 0
            self.state[p]["step"] += 1
            p.sub_(0.1 * p.grad)


def steps_copied_with_counts_of_the_device():
    """The counts are copied together, from memory that no later work may get before."""
    from internals.fsdp import CopiedStep, copied, managed, states_of, streams, transfers

    from shoal.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = Counting(model.parameters())
    pairs, states = [(managed(p), managed(p)) for p in model.parameters()], states_of(optimizer)
    step = None
    for number in range(4):
        model(torch.ones(2, 4)).square().sum().backward()
        if step is not None:
            step.await_all()
            assert [float(values["step"]) for _, values, _ in step.others] == 8 * [number]
        optimizer.step()
        # Only a driver of CUDA pins memory.
        pinned = mock.patch.object(streams, "pinned_like", torch.empty_like)
        with pinned, mock.patch.object(copied, "on_host", return_value=False):
            step = CopiedStep.begin(transfers.of(torch.device("cpu")), pairs, optimizer, states)
        optimizer.zero_grad()


ALONE = {**OURS_ALONE, **{f.__name__: f for f in (steps_copied_to_the_host, steps_copied_with_counts_of_the_device)}}
ALL = {**case, **fsdp2_test.case, **fsdp2_extensions_test.case, **fsdp2_combined_test.case}
SLICE = (
    *case,
    "blocks_and_root",
    "uneven_rows",
    "sharded_on_another_dim",
    "bf16_reduced_in_fp32",
    "dtypes_mixed_in_one_unit",
    "accumulated_without_communication",
    "checkpointed_activations",
    "replicas_of_shards",
    "hooks_on_reduced_gradients",
    "extensions_whose_whole_parameter_has_another_dtype",
)
CASES = {name: spec for name, spec in ALL.items() if WHOLE or name in SLICE}


def on_late_device(function, seed, api, bits=None):
    """Runs a case of ours on a late device; others as they are. ``bits``: keeps this rank's results with the first seed. Later seeds give
    the same bits, so they need no gather and no other comparison."""
    from internals.fsdp import gather, transfers

    import shoal.fsdp

    if api.plain or api.fully_shard is not shoal.fsdp.fully_shard:
        return function(api)
    device = LateDevice(seed, torch.distributed.get_rank())
    transfers.forget()
    transfers.opens = lambda _: LateStreams(device)
    gather.PACKED_BELOW = 256 << (10 * (seed % 2))  # large slices of gathers ahead go into place, or all are packed
    seen = None
    try:
        with device:
            seen = function(api)
    finally:
        if isinstance(seen, Seen) and seed == SEEDS[0]:
            bits.update(seen.own)
            seen.values  # noqa: B018  # a rank gathers also if it alone has found faults, because the others do
    if isinstance(seen, Seen) and seed != SEEDS[0]:
        _compare_bits(seen.own, bits)
    return seen


def _compare_bits(own, bits):
    assert own.keys() == bits.keys(), own.keys() ^ bits.keys()
    for name, value in own.items():
        same = torch.equal(value, bits[name]) if isinstance(value, torch.Tensor) else value == bits[name]
        assert same, f"{name} has other bits than with seed {SEEDS[0]}"


def seeded(spec, seed, bits):
    compared = {} if seed == SEEDS[0] else {"plain": False, "theirs": False}
    return SimpleNamespace(**vars(spec) | compared | {"function": functools.partial(on_late_device, spec.function, seed, bits=bits)})


def alone(function, seed):
    on_late_device(lambda api: function(), seed, SimpleNamespace(plain=False, fully_shard=shoal.fsdp.fully_shard))


def seeds_on(workers):
    return SEEDS[::10] if workers == 4 else SEEDS


def all_cases():
    from internals.fsdp import leave_arenas

    leave_arenas()
    # One operator for each parameter, where AdamW has fourteen: both read gradients and write rows. The second step follows what was
    # learned in the first one, and the third would repeat it.
    compared_runs.STEPS, compared_runs.OPTIMIZER = 2, functools.partial(torch.optim.SGD, lr=0.1)
    seeds, bits = seeds_on(torch.distributed.get_world_size()), {name: {} for name in CASES}
    cases = run_cases({f"{name} {seed}": seeded(spec, seed, bits[name]) for name, spec in CASES.items() for seed in seeds})
    return cases | run({f"{name} {seed}": functools.partial(alone, f, seed) for name, f in ALONE.items() for seed in seeds})


NAMED = [
    (n, f"{name} {seed}")
    for n in WORLDS
    for name in (*(name for name, spec in CASES.items() if n in spec.worlds), *ALONE)
    for seed in seeds_on(n)
]

failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), NAMED)
def test_case(workers, name, failed):
    check(name, failed(workers))
