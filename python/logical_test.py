"""The division of logical ranks among workers, and sums along the tree over them."""

import pytest
import torch

from shoal.fsdp._parameters.logical import PartialSums, blocks

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
