"""Units outside of an arena on a device that orders work as badly as CUDA's rules allow, on the CPU: ``late_device``.

The cases are a slice of those of ``fsdp_devices_test``. Each compares its results with plain training, and fails if no mark orders two uses
of memory. ``SHOAL_SEEDS`` (``./dev test --all``) takes all cases on 1, 2
and 4 ranks, with a seed per 200.
"""

import functools
import os
from types import SimpleNamespace

import fsdp2_combined_test
import fsdp2_extensions_test
import fsdp2_test
import pytest
import torch
from compared_runs import run_cases
from late_device import LateDevice, LateStreams
from launching.trained import check, worlds

WHOLE = "SHOAL_SEEDS" in os.environ
WORLDS = (1, 2, 4) if WHOLE else (2,)
SEEDS = range(max(1, int(os.environ["SHOAL_SEEDS"]) // 200) if WHOLE else 2)
ALL = {**fsdp2_test.case, **fsdp2_extensions_test.case, **fsdp2_combined_test.case}
SLICE = (
    "blocks_and_root",
    "uneven_rows",
    "sharded_on_another_dim",
    "bf16_reduced_in_fp32",
    "dtypes_mixed_in_one_unit",
    "accumulated_without_communication",
    "checkpointed_activations",
    "replicas_of_shards",
    "hooks_on_reduced_gradients",
    "extensions_whose_whole_parameter_has_another_dtype",
)
CASES = {name: spec for name, spec in ALL.items() if WHOLE or name in SLICE}


def on_late_device(function, seed, api):
    """Runs a case of ours on a late device; others as they are."""
    from internals.fsdp import transfers

    import shoal.fsdp

    if api.plain or api.fully_shard is not shoal.fsdp.fully_shard:
        return function(api)
    device = LateDevice(100 * seed + torch.distributed.get_rank())
    transfers.forget()
    transfers.opens = lambda _: LateStreams(device)
    with device:
        return function(api)


def seeded(spec, seed):
    return SimpleNamespace(**{**vars(spec), "function": functools.partial(on_late_device, spec.function, seed)})


def all_cases():
    from internals.fsdp import leave_arenas

    leave_arenas()
    return run_cases({f"{name} {seed}": seeded(spec, seed) for name, spec in CASES.items() for seed in SEEDS})


NAMED = [(n, f"{name} {seed}") for n in WORLDS for name, spec in CASES.items() if n in spec.worlds for seed in SEEDS]

failed = worlds(all_cases)


@pytest.mark.parametrize(("workers", "name"), NAMED)
def test_case(workers, name, failed):
    check(name, failed(workers))
