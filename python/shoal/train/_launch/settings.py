"""The environment variables that ranks get from their driver."""

from __future__ import annotations

import os
from collections.abc import Collection

from shoal._core.variables import switch

# Environment variables passed to the ranks, and the beginnings of those that are passed where workers have devices.
_SETTINGS = (
    "SHOAL_FSDP",
    "SHOAL_INTERFACE",
    "SHOAL_LEASE_GUARD",
    "SHOAL_TIMEOUT",
    "SHOAL_TRANSPORT",
    "SHOAL_DEVICE_TRANSPORT",
    "SHOAL_GRACE",
    "SHOAL_RECORD",
    "SHOAL_RUN_FOLDER",
    "SHOAL_NVTX",
)
_OF_DEVICES = ("NCCL_", "TORCH_NCCL_", "PYTORCH_", "CUDA_", "CUBLAS_")
_OF_THE_NODE = ("CUDA_VISIBLE_DEVICES",)  # it chooses a worker's device


def inherited_settings(use_gpu: bool, given: Collection[str] = ()) -> dict[str, str]:
    """Returns the variables of this process that ranks inherit, without those in ``given``, which the ranks get by other means."""
    for name in ("SHOAL_FSDP", "SHOAL_LEASE_GUARD", "SHOAL_RECORD"):
        if name not in given:
            switch(name)  # a wrong value raises here, not later in every rank
    names = [*_SETTINGS, *(n for n in os.environ if use_gpu and n.startswith(_OF_DEVICES) and n not in _OF_THE_NODE)]
    return {name: os.environ[name] for name in names if name in os.environ and name not in given}
