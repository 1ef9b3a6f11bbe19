"""The memory calculator, compared with textbook sums and with a module counted by hand."""

import pytest
import torch
from torch import nn

from shoal.fsdp import estimate_memory

GB = 10**9


def test_a_7b_model_with_adam_takes_112_gb_or_14_on_8_ranks():
    e = estimate_memory(7 * GB, 8)
    assert e.replicated == 112 * GB
    assert (e.weights, e.gradients, e.optimizer, e.sharded) == (3.5 * GB, 3.5 * GB, 7 * GB, 14 * GB)
    assert "14.000 GB   12.5%" in str(e)


def test_bert_base_halves_its_values_per_rank_on_two_ranks():
    e = estimate_memory(110_000_000, 2, optimizer="AdamW")
    assert (e.replicated // 4, e.sharded // 4) == (440_000_000, 220_000_000)


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adadelta", 2), (3, 3)])
def test_the_optimizers_states_count(optimizer, states):
    assert estimate_memory(1000, 4, optimizer=optimizer).optimizer == states * 250 * 4


def test_rows_are_cut_as_by_chunk_and_the_first_rank_has_most():
    e = estimate_memory(nn.Linear(3, 5), 2, optimizer="sgd")
    assert e.weights == 4 * (3 * 3 + 3)
    assert estimate_memory(nn.Linear(3, 1), 4).weights == 4 * (3 + 1)  # one row cannot be split


def test_frozen_parameters_have_neither_gradients_nor_states():
    model = nn.Sequential(nn.Linear(4, 4, bias=False).requires_grad_(False), nn.Linear(4, 4, bias=False))
    e = estimate_memory(model, 1)
    assert (e.weights, e.gradients, e.optimizer) == (128, 64, 128)
    assert e.replicated == 128 + 64 + 128


def test_the_peak_is_a_ranks_part_and_the_largest_unit():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)))
    e = estimate_memory(model, 4, optimizer="sgd", param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert (e.unit_weights, e.unit_gradients) == (256 * 2, 256 * 4)
    assert e.peak == e.sharded + 256 * 6
    inner = estimate_memory(model, 4, units=model[1])
    assert inner.unit_weights == 128 * 4
    half = estimate_memory(model, 4, dtype=torch.bfloat16)
    assert (half.weights, half.unit_weights) == (320 // 4 * 2, 256 * 2)


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match=r"estimates have no optimizer 'lion'\n  hint: pass sgd,"):
        estimate_memory(10, 2, optimizer="lion")
    with pytest.raises(ValueError, match="world_size is a number from 1 on, not 0"):
        estimate_memory(10, 0)
