"""Accelerate shards on accelerators only: where a program asks for FSDP on CPUs, it takes DDP and says nothing. With Shoal it shards."""

from __future__ import annotations

import functools
import os
from types import ModuleType

import torch


def shard_on_cpus(state: ModuleType) -> None:
    """``state``: the module ``accelerate.state``. Its ``AcceleratorState`` takes FSDP, if the program asks for it, on CPUs, too."""
    from shoal.fsdp._install import is_installed

    original = state.AcceleratorState.__init__

    @functools.wraps(original)
    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        kinds = state.DistributedType
        if fsdp_plugin is not None and self.distributed_type == kinds.MULTI_CPU and is_installed():
            self.distributed_type, self.fsdp_plugin = kinds.FSDP, fsdp_plugin
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            state.PartialState._shared_state["distributed_type"] = kinds.FSDP

    state.AcceleratorState.__init__ = init
    if not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"  # without it every process trains alone
