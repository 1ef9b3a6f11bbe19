"""Units in no arena, as on CUDA meshes: fsdp2_test's cases on the CPU, with bytes that the mesh's process groups move."""

import functools

import fsdp2_test  # noqa: F401  its cases
import pytest
from beside import CASES, run_cases
from uses import check

import shoal
from shoal.train import ScalingConfig, Trainer

WORLDS = (1, 2)


def all_cases():
    from shoal.fsdp._mesh import DataMesh

    DataMesh.in_arena = property(lambda self: False)
    return run_cases()


@pytest.fixture(scope="module")
def failed():
    shoal.init(num_cpus=8)
    yield functools.cache(lambda workers: Trainer(all_cases, scaling_config=ScalingConfig(num_workers=workers)).fit().returns)
    shoal.shutdown()


@pytest.mark.parametrize(("workers", "name"), [(n, name) for n in WORLDS for name, spec in CASES.items() if n in spec.worlds])
def test_case(workers, name, failed):
    check(name, failed(workers))
