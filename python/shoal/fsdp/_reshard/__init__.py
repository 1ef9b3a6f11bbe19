"""Moves a live sharded model and its optimizers to another mesh, between two steps, from memory to memory."""

from shoal.fsdp._reshard.before import OldMesh
from shoal.fsdp._reshard.change import Report
from shoal.fsdp._reshard.phases import Phases
from shoal.fsdp._reshard.reshard import reshard

__all__ = ["OldMesh", "Phases", "Report", "reshard"]
