"""Patches for training libraries that choose their sharding by devices or tensor classes, applied by ``install``.

Each function patches one module of a library after the program has imported it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from _shoal_switch import after_import

from shoal.fsdp1.fully_sharded_data_parallel import FullyShardedDataParallel


@functools.cache  # registers the patches once per process
def follow(is_installed: Callable[[], bool]) -> None:
    after_import("accelerate.state", partial(shard_on_cpus, is_installed))
    for package in ("lightning.fabric", "lightning_fabric"):  # the package of lightning, and that of pytorch_lightning
        after_import(f"{package}.strategies.model_parallel", load_whole_state_dicts)


def shard_on_cpus(is_installed: Callable[[], bool], state: ModuleType) -> None:
    """Patches ``accelerate.state``: for FSDP on CPUs ``AcceleratorState`` silently selects DDP; now it selects FSDP."""
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
        os.environ["ACCELERATE_USE_CPU"] = "true"  # without it each process would train alone


def load_whole_state_dicts(model_parallel: ModuleType) -> None:
    """Exempts FSDP1's wrapper from Lightning's FSDP2 path, which looks for names with ``_fsdp_wrapped_module.`` in a checkpoint.

    Lightning takes any model with DTensors for FSDP2's. The wrapper loads whole state dicts by itself.
    """
    original = model_parallel._has_dtensor_modules

    @functools.wraps(original)
    def has_dtensor_modules(module):
        return not isinstance(module, FullyShardedDataParallel) and original(module)

    model_parallel._has_dtensor_modules = has_dtensor_modules
