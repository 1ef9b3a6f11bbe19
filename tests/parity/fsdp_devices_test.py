"""Units outside of an arena, as on CUDA meshes: the cases of the tests of FSDP2, on the CPU. The mesh's process groups move the data."""

import fsdp2_combined_test
import fsdp2_extensions_test
import fsdp2_test
import pytest
import torch
from compared_runs import run_cases, worlds
from torch import nn
from uses import check, run

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


OURS_ALONE = {"units_that_are_built_anew": units_that_are_built_anew}


def all_cases():
    from shoal.fsdp._parameters.mesh import DataMesh

    DataMesh.in_arena = property(lambda self: False)
    return {**run_cases(CASES), **run(OURS_ALONE)}


NAMED = [(n, name) for n in WORLDS for name in (*(c for c, spec in CASES.items() if n in spec.worlds), *OURS_ALONE)]


failed = worlds(all_cases, num_cpus=8)


@pytest.mark.parametrize(("workers", "name"), NAMED)
def test_case(workers, name, failed):
    check(name, failed(workers))
