"""The division of logical ranks among workers, sums along the tree over them, passes that pad, and their seed."""

import pytest
import torch

from shoal.fsdp._parameters.logical import Part, PartialSums, blocks
from shoal.train._pads import Pads
from shoal.train._state import seed_all

POWERS = [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("logical", POWERS)
def test_workers_get_nodes_of_the_tree_of_sizes_as_even_as_possible(logical):
    for workers in range(1, logical + 1):
        mine = blocks(logical, workers)
        assert [r for block in mine for r in block] == list(range(logical))
        assert len(mine) == workers
        sizes = {len(block) for block in mine}
        assert max(sizes) <= 2 * min(sizes)
        for block in mine:
            assert len(block) & (len(block) - 1) == 0
            assert block[0] % len(block) == 0


def by_definition(gradients, begin, size):
    if size == 1:
        return gradients.get(begin)
    left, right = by_definition(gradients, begin, size // 2), by_definition(gradients, begin + size // 2, size // 2)
    return right if left is None else left if right is None else left + right


@pytest.mark.parametrize("size", POWERS)
def test_partial_sums_have_the_bits_of_the_tree_whatever_is_missing(size):
    random = torch.Generator().manual_seed(size)
    for first in (0, size, 3 * size):
        for kept in (1.0, 0.7, 0.3):
            there = [leaf for leaf in range(first, first + size) if torch.rand(1, generator=random) < kept]
            gradients = {leaf: torch.randn(50, generator=random) for leaf in there}
            sums = PartialSums()
            for leaf, gradient in gradients.items():
                sums.add(leaf, gradient.clone())
                assert len(sums._sums) <= size.bit_length()  # one per level
            assert bool(sums) == bool(gradients)
            if gradients:
                assert torch.equal(sums.take(), by_definition(gradients, first, size))
            assert not sums


def test_a_sum_in_order_has_other_bits():
    gradients = {leaf: torch.randn(50, generator=torch.Generator().manual_seed(leaf)) for leaf in range(8)}
    in_order = sum(gradients.values())
    assert not torch.equal(in_order, by_definition(gradients, 0, 8))


def test_pads_run_before_a_workers_last_part_until_they_end():
    passes = []
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: passes.append(1))
    pads = Pads(model, [])
    pads.begin(Part(0, 4, last=True), 0, 3)  # the workers play 1, 1 and 2 of 4 logical ranks
    model(torch.ones(1, 2))
    assert len(passes) == 2
    pads.begin(Part(0, 4, last=True), 0, 3)
    pads.end()
    model(torch.ones(1, 2))
    assert len(passes) == 3
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("initialized", [True, False])
def test_a_seed_reaches_the_current_device(initialized, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    before = torch.get_rng_state()
    seed_all(7)
    torch.set_rng_state(before)
    assert seeds == ([7] if initialized else [])
