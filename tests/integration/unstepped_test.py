"""Gradients that wait for a step of their optimizer: the workers do not change meanwhile."""

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

from shoal.train import State, _unstepped
from shoal.train._gang import Gang
from shoal.train._unstepped import Unstepped


def setting(**more):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = State(model=model, optimizer=optimizer, **more)
    return model, optimizer, Unstepped(state)


def backward(model):
    model(torch.randn(4, 3)).sum().backward()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_wait_until_the_optimizer_steps_or_they_are_dropped(set_to_none):
    model, optimizer, unstepped = setting()
    assert not unstepped.any()
    for _ in range(2):
        backward(model)
        assert unstepped.any()
    optimizer.step()
    assert not unstepped.any()  # although the gradients are there until the next batch drops them
    optimizer.zero_grad(set_to_none=set_to_none)
    backward(model)
    assert unstepped.any()
    optimizer.zero_grad(set_to_none=set_to_none)  # a batch that the program skips
    assert not unstepped.any()


def test_each_optimizer_uses_its_own_gradients():
    other = nn.Linear(3, 1)
    often = torch.optim.SGD(other.parameters(), lr=0.1)
    model, optimizer, unstepped = setting(other=other, often=often)
    backward(model)
    backward(other)
    often.step()
    assert unstepped.any()
    optimizer.step()
    assert not unstepped.any()


def test_gradients_of_no_optimizer_do_not_wait():
    model, optimizer, unstepped = setting(frozen=(frozen := nn.Linear(3, 1)))
    backward(frozen)
    assert not unstepped.any()
    assert Unstepped(State(model=model)).any() is False
    backward(model)
    assert Unstepped(State(model=model)).any() is True  # the loop has no optimizer, and writes to parameters by itself
    assert optimizer is not None


def test_optimizers_may_alternate_and_end():
    other = nn.Linear(3, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    model, optimizer, unstepped = setting(other=other, second=second)
    for m, o in ((model, optimizer), (other, second), (model, optimizer), (model, optimizer)):
        o.zero_grad()
        backward(m)
        assert unstepped.any()
        o.step()
        assert not unstepped.any()  # the other one's gradients are there still, and used
    backward(other)
    assert unstepped.any()  # it adds to used gradients


def test_an_optimizer_may_be_made_for_each_step():
    model = nn.Linear(3, 1)
    unstepped = Unstepped(State(model=model))
    for _ in range(3):
        backward(model)
        assert unstepped.any()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        gc.collect()
        assert not unstepped.any()


def test_optimizers_for_each_step_keep_no_books():
    model = nn.Linear(3, 1)
    unstepped = Unstepped(State(model=model))
    backward(model)
    for _ in range(2000):
        for p in model.parameters():  # new tensors now and then
            p.grad = p.grad.clone()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert len(unstepped._used) < 2000
    assert len(unstepped._optimizers) < 1000
    assert not unstepped.any()


def test_optimizers_may_be_unhashable():
    class Compared(torch.optim.SGD):
        def __eq__(self, other):
            return isinstance(other, Compared)

    model = nn.Linear(3, 1)
    unstepped = Unstepped(State(model=model))
    for _ in range(2):
        backward(model)
        Compared(model.parameters(), lr=0.1).step()
        assert not unstepped.any()


def test_the_last_step_of_two_optimizers_counts():
    model, optimizer, unstepped = setting()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    other.step()
    backward(model)
    assert unstepped.any()
    optimizer.step()
    assert not unstepped.any()


def test_an_optimizer_that_has_the_address_of_an_earlier_one_is_another():
    model = nn.ModuleList(nn.Linear(3, 1) for _ in range(100))
    unstepped, addresses = Unstepped(State(model=model)), []
    for layer in model:  # the gradients of the layers before it stay
        backward(layer)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer.step()
        addresses.append(id(optimizer))
        del optimizer
        gc.collect()
        assert not unstepped.any()
        if addresses[-1] in addresses[:-1]:
            return
    pytest.fail("no address came twice")


def test_a_gradient_behind_the_step_waits():
    model, optimizer, unstepped = setting()
    backward(model)
    optimizer.step()
    optimizer.zero_grad()
    backward(model)
    assert unstepped.any()


class Wrapper:
    """An object with an optimizer, which is none itself."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, saved):
        self.optimizer.load_state_dict(saved)


def test_a_gradient_that_no_wrapped_optimizer_has_does_not_wait():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    unstepped = Unstepped(State(model=model, wrapped=Wrapper(optimizer)))
    backward(model)
    assert unstepped.any()
    optimizer.step()
    assert not unstepped.any()


def sharded_root(**more):
    """Stands for the root of a sharded model, between two steps."""
    step = {name: more.pop(name, False) for name in ("unstepped", "waits_for_finalize")}
    values = {"forwards": [], "units": [], "window_open": True, "versions": lambda: [4], "step": SimpleNamespace(**step)}
    return SimpleNamespace(**values | more)


@pytest.mark.parametrize(
    ("found", "waits"),
    [
        ({}, False),
        ({"unstepped": True}, True),
        ({"units": [SimpleNamespace(parameters=[SimpleNamespace(gradient=SimpleNamespace(kept=True))])]}, True),
        ({"waits_for_finalize": True}, True),
        ({"window_open": False, "forwards": [SimpleNamespace(versions=[4])]}, True),
        ({"window_open": False, "forwards": [SimpleNamespace(versions=[3])]}, False),  # a step has ended its version
        ({"forwards": [SimpleNamespace(versions=[4])]}, False),
    ],
)
def test_a_sharded_model_waits_for_all_of_its_backward_passes(found, waits):
    model, optimizer, unstepped = setting()
    backward(model)
    optimizer.step()
    state = SimpleNamespace(root=sharded_root(**found))
    for p in model.parameters():
        p._shoal_state = state
    unstepped._sharded = [state]
    assert unstepped.any() == waits


def alone(own):
    return own


def test_a_change_that_waits_long_prints_why(capsys):
    model, _, unstepped = setting()
    backward(model)
    for _ in range(2 * _unstepped._LONG_WAIT):
        assert not unstepped.allows_change(True, alone, prints=True)
    assert capsys.readouterr().err.count("a change of the workers has waited for optimizer.step() for 100 batches") == 1


def test_a_change_waits_for_the_gradients_of_any_worker():
    model, optimizer, unstepped = setting()
    backward(model)
    assert not unstepped.allows_change(True, alone, prints=False)
    optimizer.step()
    words = []
    assert not unstepped.allows_change(True, lambda own: words.append(own) or 1, prints=False)  # another worker's gradients
    assert words == [True, False]
    assert unstepped.allows_change(True, alone, prints=False)


def test_gradients_are_looked_at_only_where_a_change_comes(monkeypatch):
    _, _, unstepped = setting()
    monkeypatch.setattr(unstepped, "any", lambda: pytest.fail("the parameters"))
    assert not unstepped.allows_change(False, alone, prints=True)


def test_a_training_of_a_fixed_size_records_no_gradients():
    before = len(hooks)
    gang = Gang(State(model=nn.Linear(3, 1)), None)
    assert len(hooks) == before
    assert not gang.boundary()


def test_the_hook_ends_with_its_training():
    before = len(hooks)
    _, _, unstepped = setting()
    assert len(hooks) == before + 1
    del unstepped
    gc.collect()
    assert len(hooks) == before
