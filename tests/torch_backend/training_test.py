"""Stock training programs on the backend shoal, beside the same ones on gloo."""

import pytest
from ranks import check

PARTS = ["ddp", "ddp_hooks", "fsdp2", "fsdp2_memory", "dtensors", "functionals", "checkpoints", "shoals", "backends"]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("part", PARTS)
def test_numbers_are_those_of_gloo(part, world_size):
    check("training_program.py", part, world_size)


def test_replicas_of_shards_train_like_shards():
    check("training_program.py", "hsdp", 4)
