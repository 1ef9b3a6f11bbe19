"""An emulation of a unit's flat parameter, backed by the unit's parameters, for programs that read its dtype or convert it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class FlatParameter:
    """The object that programs find as ``unit._flat_param`` and ``unit._handle``. Accelerate reads its dtype, device, ``requires_grad`` and
    names.

    For mixed precision Accelerate runs ``flat.data = flat.data.to(torch.float32)``, which converts the unit's floating-point parameters.
    """

    def __init__(self, unit: nn.Module):
        self.__dict__["_unit"] = unit

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(m.parameter for m in self._unit._managed))

    @property
    def _fqns(self) -> list[str]:
        return [m.name for m in self._unit._managed]

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype of the unit's trained floating-point parameters, or of all if none is trained."""
        floating = [p for p in self._parameters if p.is_floating_point()]
        return min((p.dtype for p in [p for p in floating if p.requires_grad] or floating), key=lambda d: d.itemsize, default=torch.float32)

    @property
    def device(self) -> torch.device:
        return self._parameters[0].device

    @property
    def requires_grad(self) -> bool:
        return any(p.requires_grad for p in self._parameters)

    @property
    def data(self) -> FlatParameter:
        return self

    def to(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "data" and isinstance(value, torch.dtype):
            self._unit._get_fsdp_state().open_write_window("_apply")
            for module in {m.module: None for m in self._unit._managed}:
                module._apply(lambda t: t.to(value) if isinstance(t, nn.Parameter) and t.is_floating_point() else t, recurse=False)
        elif name != "_orig_param_dtype":  # without effect: the gathered dtype is that of the parameters
            raise AttributeError(f"a unit's flat parameter has no {name} to be set", name=name, obj=self)
