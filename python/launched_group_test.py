"""Groups that a loop written for torchrun initialises inside a training."""

import pytest
import torch.distributed as dist

from shoal.train._launch import process_group


class PythonStore(dist.Store):
    """A store without clone(), as one of a launcher's."""

    def __init__(self):
        super().__init__()


class LostStore(dist.HashStore):
    def clone(self):
        raise dist.DistNetworkError("the store's process is gone")


@pytest.fixture
def initialised(monkeypatch):
    """The stores with which groups were initialised."""
    stores = []
    monkeypatch.setattr(dist, "init_process_group", lambda *args: stores.append(args[5]))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    return stores


def initialise(store):
    process_group.allow_another_group(lambda: store, "gloo", elastic=False)
    dist.init_process_group("gloo")


def test_a_store_without_clones_is_shared(initialised):
    store = PythonStore()
    initialise(store)
    assert initialised[0].underlying_store is store


def test_a_lost_store_is_the_error(initialised):
    with pytest.raises(dist.DistNetworkError, match="the store's process is gone"):
        initialise(LostStore())
    assert not initialised
