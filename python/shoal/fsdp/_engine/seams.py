"""The seams of the engine: the fields by which a part uses a part above it, so that imports go down only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from shoal import _native
    from shoal.fsdp._engine.settings import Settings
    from shoal.fsdp._parameters.mesh import DataMesh
    from shoal.fsdp._parameters.parameter import ShardedParameter


class UnitSeam(Protocol):
    """A unit (``unit.py``), for what gathers and reduces its parameters, and for what finds them."""

    state: StateSeam
    data: DataMesh
    parameters: list[ShardedParameter]
    all_reduce_hook: Callable[[torch.Tensor], None] | None
    all_reduce_hook_stream: Any
    keeps_storage: bool
    post_forward_mesh: Any
    scale: float
    leaves: list[int] | None

    def describe(self) -> None: ...
    def accumulated(self, p: ShardedParameter) -> None: ...
    def in_arena(self, p: ShardedParameter) -> bool: ...


class StateSeam(Protocol):
    """A call of fully_shard (``state.py``), for its units, its write guard and its root."""

    modules: tuple[nn.Module, ...]
    module: nn.Module
    data: DataMesh
    settings: Settings
    units: list[Any]
    root: RootSeam | None
    name: str
    index: int
    is_root: bool
    forwarding: bool
    shows: _native.View
    writes: Any

    def covered(self) -> set[int]: ...
    def show(self, view: _native.View) -> None: ...
    def unit_like(self, other: UnitSeam) -> Any: ...


class RootSeam(Protocol):
    """The units of one model (``root.py``), for their states and what those hold."""

    states: list[StateSeam]
    number: int
    units: list[UnitSeam]
    models: list[_native.ShardedModel]
    step: _native.Step
    window_open: bool
    samples: int | None
    samples_kept: int
    prefetch_depth: int
    reductions: Any
    copies: dict[ShardedParameter, torch.Tensor]
    backward_ranges: dict[int, Any]
    in_backward_optimizer: Any

    def note_left(self) -> None: ...
    def replan(self) -> None: ...
    def open_window(self, caller: str) -> None: ...
    def still_on_meta(self) -> Exception: ...
