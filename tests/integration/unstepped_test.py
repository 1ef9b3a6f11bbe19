"""Gradients that wait for a step of their optimizer: the workers do not change meanwhile."""

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

from shoal.train import State, _gang, _unstepped
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
        unstepped.begin_batch()
        backward(model)
        assert unstepped.any()
    optimizer.step()
    assert not unstepped.any()  # although the gradients are there until the next batch drops them
    unstepped.begin_batch()
    optimizer.zero_grad(set_to_none=set_to_none)
    backward(model)
    assert unstepped.any()
    optimizer.zero_grad(set_to_none=set_to_none)  # a batch that the program skips
    assert not unstepped.any()


def test_each_optimizer_uses_its_own_gradients():
    other = nn.Linear(3, 1)
    often = torch.optim.SGD(other.parameters(), lr=0.1)
    model, optimizer, unstepped = setting(other=other, often=often)
    unstepped.begin_batch()
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


def test_a_change_that_waits_long_prints_why(monkeypatch, capsys):
    model, optimizer, _ = setting()
    gang = Gang(State(model=model, optimizer=optimizer))
    gang._next = SimpleNamespace(_ref=SimpleNamespace(ready=True))
    backward(model)
    for _ in range(2 * _unstepped._LONG_WAIT):
        assert not gang.boundary()
    assert capsys.readouterr().err.count("a change of the workers has waited for optimizer.step() for 100 batches") == 1


def test_a_change_waits_for_the_gradients_of_any_worker(monkeypatch):
    model, optimizer, _ = setting()
    state = State(model=model, optimizer=optimizer)
    gang, entered = Gang(state), []
    gang._next = SimpleNamespace(_ref=SimpleNamespace(ready=True))
    monkeypatch.setattr(_gang, "get", lambda ref: "the transition")
    monkeypatch.setattr(gang, "_change", entered.append)
    backward(model)
    assert not gang.boundary()
    optimizer.step()
    monkeypatch.setattr(gang, "agree", lambda own: max(own, _gang._WAITS))  # another worker's gradients
    assert not gang.boundary()
    monkeypatch.undo()
    monkeypatch.setattr(_gang, "get", lambda ref: "the transition")
    monkeypatch.setattr(gang, "_change", entered.append)
    assert gang.boundary()
    assert entered == ["the transition"]


def test_the_hook_ends_with_its_training():
    before = len(hooks)
    _, _, unstepped = setting()
    assert len(hooks) == before + 1
    del unstepped
    gc.collect()
    assert len(hooks) == before
