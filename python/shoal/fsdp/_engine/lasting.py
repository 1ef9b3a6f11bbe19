"""The memory that a protected model's ranks share for states and gradients. It outlives the protection, and goes to the next mesh."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from shoal import _native
from shoal.fsdp._engine.state import State

# Keyed by the first State of each model; None if its ranks share no memory for them.
shared_arrays: WeakKeyDictionary[State, _native.SharedArrays | None] = WeakKeyDictionary()
