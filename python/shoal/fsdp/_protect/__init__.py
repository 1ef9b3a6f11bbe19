"""Optimizer steps that happen exactly once, also when a rank is killed at any moment."""

from shoal._native import committed_step
from shoal.fsdp._protect.adopted import AdoptedArray, AdoptedRank, adopt
from shoal.fsdp._protect.host_copy import HostCopy
from shoal.fsdp._protect.moments import Moment, at_next
from shoal.fsdp._protect.protect import protect
from shoal.fsdp._protect.protection import Protection

__all__ = ["AdoptedArray", "AdoptedRank", "HostCopy", "Moment", "Protection", "adopt", "at_next", "committed_step", "protect"]
