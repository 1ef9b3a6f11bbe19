"""Units outside of an arena, as on CUDA meshes: the cases of the tests of FSDP2, on the CPU.

Each case runs twice. Once the mesh's process groups move the data, once Shoal's own communicator in the place of one between devices.
"""

import re
import time
from contextlib import nullcontext

import fsdp2_combined_test
import fsdp2_extensions_test
import fsdp2_test
import pytest
import torch
from compared_runs import rank, run_cases
from launching.trained import check, run, worlds
from torch import nn

WORLDS = (1, 2)
CASES = {**fsdp2_test.case, **fsdp2_extensions_test.case, **fsdp2_combined_test.case}


def units_that_are_built_anew():
    """Ties parameters after a step. They then lie in other memory, which unshard must use."""
    from shoal.fsdp import fully_shard, write

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model)
    x = torch.ones(2, 4)
    model(x).sum().backward()
    with write(model):
        model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain[1].weight = plain[0].weight
    with torch.no_grad():
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            p.copy_(q.full_tensor())
        torch.testing.assert_close(model(x), plain(x))


def writes_between_evaluations():
    """Writes to each parameter between evaluations, with and without gradients. The next one must gather what was written."""
    from shoal.fsdp import fully_shard

    for grad in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        x = torch.ones(2, 4)
        model(x).sum().backward()  # a backward, too, leaves a guess of what follows
        for value in range(6):
            if value % 2:
                with torch.no_grad():
                    for p in model.parameters():
                        p.to_local().fill_(value / 8)
            with torch.set_grad_enabled(grad):
                found = model(x).detach()
            if value % 2:
                expected = x
                for _ in range(3):
                    expected = nn.functional.linear(expected, torch.full((4, 4), value / 8), torch.full((4,), value / 8))
                torch.testing.assert_close(found, expected)


def a_timeline_with_transfers():
    """Each unit's gathers and reductions have lanes of their own beside the computation."""
    from shoal.fsdp import fully_shard, step_graph

    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    graph = step_graph(model)
    transfers = [n for n in graph.nodes if n.lane in ("gather", "reduce")]
    if torch.distributed.get_world_size() == 1:
        assert not transfers
        return
    assert {n.label for n in transfers} == {f"{op}({unit})" for op in ("all_gather", "reduce_scatter") for unit in range(3)}
    for unit in "012":
        forward, backward = (graph.find(f"{op}({unit})")[0].measured for op in ("forward", "backward"))
        gathers, (reduction,) = graph.find(f"all_gather({unit})"), graph.find(f"reduce_scatter({unit})")
        assert gathers[0].measured[0] < forward[1]
        assert reduction.measured[0] > backward[0]
    assert all(n.measured[0] <= n.measured[1] for n in transfers)
    shown = {e["tid"]: e["args"]["name"] for e in graph.events if e["name"] == "thread_name" and e["pid"] == 2 * rank() + 2}
    assert {shown[e["tid"]] for e in graph.events if e["name"] in {n.label for n in transfers}} == {"gather", "reduce"}
    assert re.search(r"compute +communication +gather +reduce\n", str(graph))


class Factor(nn.Module):
    """Its gradient is -0.0 where the input is -0.0: an elementwise product rounds nothing, and adds nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return self.weight * x


def absent_gradients_that_keep_the_signs_of_zeros():
    """With an order of additions, a rank without a gradient adds nothing: -0.0 + 0.0 would be 0.0."""
    from internals.fsdp import Part, state_of

    from shoal.fsdp import fully_shard

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.everywhere, self.on_rank_0 = Factor(), Factor()

        def forward(self, x):
            out = self.everywhere(x)
            return out if rank() else out + self.on_rank_0(x)

    model = Net()
    fully_shard(model)
    settings = state_of(model).settings
    settings.reduce_unused = True
    settings.part = Part(rank(), torch.distributed.get_world_size(), last=True)
    model(torch.full((4, 4), -0.0)).sum().backward()
    for module in (model.everywhere, model.on_rank_0):
        gradient = module.weight.grad.full_tensor()
        assert not gradient.any()
        assert gradient.signbit().all()


def timelines_of_two_models():
    """A model's graph has no transfers of another one that runs between its forward and its backward."""
    from shoal.fsdp import fully_shard, step_graph

    models = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))]
    for model in models:
        fully_shard(model if isinstance(model, nn.Linear) else model[0])
    fully_shard(models[1])
    for _ in range(3):
        out = [model(torch.ones(2, 4)).sum() for model in models]
        for loss in out:
            loss.backward()
    for model, unit in zip(models, ("root", "0"), strict=True):
        transfers = {n.label for n in step_graph(model).nodes if n.lane in ("gather", "reduce")}
        expected = {f"all_gather({unit})", f"reduce_scatter({unit})"} if torch.distributed.get_world_size() > 1 else set()
        assert transfers == expected


OURS_ALONE = {
    f.__name__: f
    for f in (
        units_that_are_built_anew,
        writes_between_evaluations,
        a_timeline_with_transfers,
        timelines_of_two_models,
        absent_gradients_that_keep_the_signs_of_zeros,
    )
}


def over_process_groups():
    from internals.fsdp import gather, leave_arenas

    leave_arenas()
    gather.PACKED_BELOW = 256  # so that some parameters travel packed and others in place
    return {**run_cases(CASES), **run(OURS_ALONE)}


def over_our_groups():
    from internals.fsdp import groups, use_own_groups

    use_own_groups()
    results = {f"{name}{OURS}": result for name, result in over_process_groups().items()}
    assert groups._groups, "no case has used our groups"
    return results


def all_cases():
    results = over_process_groups()
    return results if torch.distributed.get_world_size() == 1 else {**results, **over_our_groups()}


OURS = " over our groups"
NAMED = [(n, name) for n in WORLDS for name in (*(c for c, spec in CASES.items() if n in spec.worlds), *OURS_ALONE)]
NAMED += [(n, f"{name}{OURS}") for n, name in NAMED if n > 1]


class OfCuda:
    """torch.cuda, as far as the times of transfers use it. A stream's time is the device's, and its events stay behind the host's clock."""

    now = 5.0

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.at = None

        def record(self, stream):
            self.at = stream.now

        def synchronize(self):
            assert self.at is not None

        def elapsed_time(self, later):
            return 1000 * (later.at - self.at)

    def current_stream(self, device):
        return self

    def device(self, device):
        return nullcontext()


def test_times_of_events_are_on_the_hosts_clock():
    from internals.fsdp import DeviceStamps, Timeline

    cuda, begin = OfCuda(), time.monotonic()
    timeline = Timeline(DeviceStamps("cuda:0", cuda))

    def runs_for(seconds):
        cuda.now += seconds

    for seconds in (2, 3):
        timeline.timed("gather", "all_gather", "root", lambda seconds=seconds: runs_for(seconds))
    cuda.now += 7
    (_, first, first_end), (_, second, second_end) = timeline.between(begin, time.monotonic())
    found = (first_end - first, second - first_end, second_end - second)
    assert found == pytest.approx((2, 0, 3))
    assert begin - 12 <= first <= time.monotonic() - 12
    assert not timeline.between(begin - 1, begin)


failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), NAMED)
def test_case(workers, name, failed):
    check(name, failed(workers))
