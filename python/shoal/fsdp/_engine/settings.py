"""The program's requests for one unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from shoal import _native
from shoal._native import AfterForward

if TYPE_CHECKING:
    from shoal.fsdp._parameters.logical import Part


@dataclass(slots=True)
class Settings:
    """Arguments of fully_shard, and the changes that FSDPModule's methods, ``join`` and ``shoal.train.steps`` make later."""

    policy: MixedPrecisionPolicy
    reshard_after_forward: InitVar[bool | int | None]  # by default True, but False for the root
    offload: CPUOffloadPolicy | None = None
    engine: _native.UnitOptions = field(default_factory=_native.UnitOptions)  # arguments that only the C++ unit uses
    ignored: WeakKeyDictionary[nn.Module, set[str]] = field(default_factory=WeakKeyDictionary)  # by module: names of its ignored attributes
    rules: _native.UnitRules = field(default_factory=_native.UnitRules)  # the requests that the step machine follows
    smaller_mesh: int | None = field(init=False)  # the number of ranks in reshard_after_forward=n
    reduce_unused: bool = False
    max_input_buffers: int | None = None  # by default 2 in an arena, 1 in collectives
    forward_prefetch: list[nn.Module] = field(default_factory=list)  # sharded modules to unshard ahead
    backward_prefetch: list[nn.Module] = field(default_factory=list)
    post_optim_event: Any = None
    weigh_samples: bool = False
    share: float | None = None  # the factor by which this rank's gradients count in the mean over ranks; None: 1, in all backward passes
    part: Part | None = None  # the batch part that this worker trains on now, in a deterministic training
    joining: bool = False
    repeats: bool = False  # this rank has no further batch, and runs its last one for the other ranks' collectives
    before_pass: Callable[[], None] | None = None  # called before a backward's first collective
    total_samples: float | None = None  # samples of all ranks in this pass, if they weigh gradients and collectives reduce these
    host_copy: Any = None  # the HostCopy of a model on devices, in its first unit, while one is kept
    protection: Any = None  # a protected model's Protection, in all of its units: its optimizer alone steps the model
    cast_to: torch.dtype | None = field(init=False)  # dtype to which the forward casts floating-point inputs; None: no cast

    def __post_init__(self, reshard_after_forward: bool | int | None) -> None:
        known = {None: AfterForward.DEFAULT, False: AfterForward.KEEP, True: AfterForward.RESHARD}
        is_number = isinstance(reshard_after_forward, int) and not isinstance(reshard_after_forward, bool)
        self.smaller_mesh = reshard_after_forward if is_number else None
        self.rules.after_forward = AfterForward.SMALLER_MESH if is_number else known[reshard_after_forward]
        self.cast_to = self.policy.param_dtype if self.policy.cast_forward_inputs else None
