"""Training libraries that decide by devices or by tensor classes how to shard: what they take into account where Shoal is installed.

Each function changes one module of a library when the program has imported it.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

import torch
from _shoal_switch import after_import


@functools.cache  # once in a process
def follow() -> None:
    after_import("accelerate.state", shard_on_cpus)
    for package in ("lightning.fabric", "lightning_fabric"):  # the one package, and the one of pytorch_lightning
        after_import(f"{package}.strategies.model_parallel", load_whole_state_dicts)


def shard_on_cpus(state: ModuleType) -> None:
    """``accelerate.state``: where a program asks for FSDP on CPUs, ``AcceleratorState`` takes DDP and says nothing. It takes FSDP now."""
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


def load_whole_state_dicts(model_parallel: ModuleType) -> None:
    """Lightning takes a model with DTensors for one of FSDP2, and looks for its names with ``_fsdp_wrapped_module.`` in a checkpoint.

    FSDP1's wrapper loads whole state dicts by itself.
    """
    from shoal.fsdp1 import FullyShardedDataParallel

    original = model_parallel._has_dtensor_modules

    @functools.wraps(original)
    def has_dtensor_modules(module):
        return not isinstance(module, FullyShardedDataParallel) and original(module)

    model_parallel._has_dtensor_modules = has_dtensor_modules
