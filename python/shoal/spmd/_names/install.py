"""``install()``: makes an unchanged script's ``import torch_xla...`` find Shoal."""

from __future__ import annotations

import importlib
import sys
import types
from importlib import metadata
from typing import Any

from shoal.exceptions import InvalidArgument
from shoal.spmd.torch_xla import __version__

# By module of torch_xla: Shoal's module that replaces it, or, by name of an attribute, the module that has this attribute.
MODULES: dict[str, str | dict[str, str]] = {
    "torch_xla": "shoal.spmd.torch_xla",
    "torch_xla.runtime": "shoal.spmd.runtime",
    "torch_xla._XLAC": "shoal.spmd._names.xlac",
    "torch_xla.amp": "shoal.spmd.amp",
    "torch_xla.amp.syncfree": {"SGD": "torch.optim", "Adam": "torch.optim", "AdamW": "torch.optim"},
    "torch_xla.core": {},
    "torch_xla.core.functions": "shoal.spmd.functions",
    "torch_xla.core.xla_env_vars": "shoal.spmd.xla_env_vars",
    "torch_xla.core.xla_model": "shoal.spmd.xla_model",
    "torch_xla.debug": {},
    "torch_xla.debug.metrics": "shoal.spmd.metrics",
    "torch_xla.debug.profiler": "shoal.spmd.profiler",
    "torch_xla.distributed": {},
    "torch_xla.distributed.spmd": "shoal.spmd",
    "torch_xla.distributed.spmd.xla_sharding": "shoal.spmd",
    "torch_xla.distributed.spmd.xla_sharded_tensor": {"XLAShard": "shoal.spmd", "XLAShardedTensor": "shoal.spmd"},
    "torch_xla.distributed.spmd.api": {
        "auto_policy": "shoal.spmd",
        "convert_to_xla_mesh": "shoal.spmd._auto.distribute",
        "convert_to_xla_partition_spec": "shoal.spmd._auto.distribute",
        "xla_distribute_module": "shoal.spmd",
        "xla_distribute_tensor": "shoal.spmd",
    },
    "torch_xla.distributed.spmd.debugging": "shoal.spmd.debugging",
    "torch_xla.distributed.parallel_loader": "shoal.spmd.parallel_loader",
    "torch_xla.distributed.fsdp": "shoal.spmd.fsdp",
    "torch_xla.distributed.fsdp.wrap": "shoal.spmd.fsdp.wrap",
    "torch_xla.distributed.fsdp.utils": {
        "apply_xla_patch_to_nn_linear": "shoal.spmd._marks.patched",
        "checkpoint_module": "shoal.spmd.fsdp",
    },
    "torch_xla.distributed.xla_backend": "shoal.spmd.xla_backend",
    "torch_xla.distributed.xla_multiprocessing": "shoal.spmd.xla_multiprocessing",
    "torch_xla.experimental": {"compile": "shoal.spmd.torch_xla", "eager_mode": "shoal.spmd.torch_xla"},
    "torch_xla.experimental.eager": dict.fromkeys(("compile", "eager_mode", "eager_mode_context", "is_eager_mode"), "shoal.spmd.torch_xla"),
    "torch_xla.experimental.assume_pure": {"assume_pure": "shoal.spmd.scan"},
    "torch_xla.experimental.custom_kernel": {"flash_attention": "shoal.spmd.flash_attention"},
    "torch_xla.experimental.gradient_accumulation": {"gradient_accumulation": "shoal.spmd.scan"},
    "torch_xla.experimental.scan": {"scan": "shoal.spmd.scan"},
    "torch_xla.experimental.scan_layers": {"scan_layers": "shoal.spmd.scan"},
    "torch_xla.experimental.xla_sharding": "shoal.spmd",
    "torch_xla.experimental.xla_sharded_tensor": {"XLAShard": "shoal.spmd", "XLAShardedTensor": "shoal.spmd"},
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": {
        "SpmdFullyShardedDataParallel": "shoal.spmd.fsdp",
        "_prepare_spmd_partition_spec": "shoal.spmd._fsdp.wrapper",
    },
    "torch_xla.experimental.distributed_checkpoint": "shoal.spmd.checkpoint",
    "torch_xla.test": {},
    "torch_xla.test.test_utils": "shoal.spmd.reporting",
    "torch_xla.utils": {},
    "torch_xla.utils.checkpoint": {"checkpoint": "shoal.spmd.utils"},
    "torch_xla.utils.serialization": {"load": "shoal.spmd.utils", "save": "shoal.spmd.xla_model"},
    "torch_xla.utils.utils": "shoal.spmd.utils",
    "torch_xla.version": {"__version__": "shoal.spmd.torch_xla"},
}

# Modules of torch_xla that Shoal lacks, with all modules below them: an alternative for each.
ABSENT = {
    "torch_xla._dynamo": "Shoal compiles nothing: torch.compile runs functions as they are",
    "torch_xla._internal": "there is no PJRT beneath Shoal: torch_xla.runtime lists devices and processes",
    "torch_xla.core.dynamo_bridge": "Shoal compiles nothing: torch.compile runs functions as they are",
    "torch_xla.core.xla_builder": "Shoal builds no XLA computations: write them with operators of torch",
    "torch_xla.stablehlo": "Shoal makes no StableHLO: export the model on the host with torch.export.export(model.cpu(), args)",
}


class Metadata(metadata.Distribution):
    """The metadata of torch_xla, for libraries that ask importlib.metadata for its version."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: torch_xla\nVersion: {__version__}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class _Finder(metadata.DistributionFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raises an error for a module of torch_xla that Shoal lacks. Other modules never get here: install() has registered them."""
        name = name.removeprefix("shoal.spmd.")  # `from torch_xla import a` uses the name of the replacing module
        if not name.startswith("torch_xla."):
            return
        words = name.split(".")
        above = (".".join(words[:n]) for n in range(len(words), 1, -1))
        instead = next((ABSENT[a] for a in above if a in ABSENT), "the README of shoal.spmd lists the supported modules of torch_xla")
        raise ModuleNotFoundError(f"No module named {name!r}. {instead[0].upper()}{instead[1:]}.")

    def find_distributions(self, context: Any = metadata.DistributionFinder.Context()) -> list[metadata.Distribution]:  # noqa: B008
        return [Metadata()] if context.name in ("torch_xla", "torch-xla") else []


def install() -> None:
    """Replaces torch_xla by Shoal in this process. Raises InvalidArgument if the real one was imported before."""
    real = sys.modules.get("torch_xla")
    if real is not None and not getattr(real, "__version__", "").endswith("+shoal"):
        raise InvalidArgument("torch_xla was imported already", hint="call shoal.spmd.install() before the first import of torch_xla")
    for name, of in MODULES.items():
        if isinstance(of, str):
            module = importlib.import_module(of)
        else:
            module = types.ModuleType(name, "Part of torch_xla that Shoal stands for.")
            module.__path__ = []
            for attribute, source in of.items():
                setattr(module, attribute, getattr(importlib.import_module(source), attribute))
        sys.modules[name] = module
    for name in MODULES:  # `import a.b` also finds b as an attribute of a
        parent, _, child = name.rpartition(".")
        if parent and not hasattr(sys.modules[parent], child):
            setattr(sys.modules[parent], child, sys.modules[name])
    sys.modules["torch_xla"].__path__ = []
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # comes before the finder that would look for torch_xla's modules in Shoal's folders
