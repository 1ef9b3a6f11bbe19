"""Every collective of ``torch.distributed`` on the backend shoal, beside gloo's results."""

import pytest
from ranks import check

PROGRAM = "collectives_program.py"
MANY = ["reductions", "scattered", "copies"]  # many sizes, dtypes and reductions
FEW = [  # run one after the other in one group
    "averages,exchanges,in_place_and_async,not_contiguous,queried,overlapping",
    "coalesced,objects,groups,sparse,mistakes,hooks",
]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [*MANY, *FEW])
def test_results_are_those_of_gloo(parts, world_size):
    check(PROGRAM, parts, world_size)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_messages_arrive_by_source_and_tag(world_size):
    check(PROGRAM, "messages", world_size)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_share_no_memory_get_the_same_results(world_size, monkeypatch):
    check("apart.py", "apart", world_size)
