"""Ranks that are threads of one process, as in torch's own tests."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.common_distributed import MultiThreadedTestCase

INITIAL = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)).state_dict()


def build():
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3))
    model.load_state_dict(INITIAL)
    return model


def batch(step, rank):
    return torch.arange(8.0).reshape(2, 4) * (rank + 1) / 10 + step


@pytest.fixture(scope="session", autouse=True)
def cluster():
    """The threads start a node by themselves, at the same time."""


class Threads(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_training_equals_one_plain_process(self):
        from shoal.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (3,))
        model, plain = build(), build()
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
        for step in range(3):
            model(batch(step, self.rank)).square().sum().backward()
            (sum(plain(batch(step, r)).square().sum() for r in range(3)) / 3).backward()
            for o in optimizers:
                o.step()
                o.zero_grad()
        rows = [-(-q.shape[0] // 3) for q in plain.parameters()]
        for p, q, n in zip(model.parameters(), plain.parameters(), rows, strict=True):
            torch.testing.assert_close(p.to_local(), q[self.rank * n : (self.rank + 1) * n])
