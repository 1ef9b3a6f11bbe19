"""Runs programs of this folder and of users in a process that has imported Shoal's SPMD."""

from launching.ranks import ForkedRanks

# It starts before the first test, so that it is no leftover of a test.
_MODULES = ("shoal.spmd", "shoal.spmd.xla_model", "shoal.spmd.fsdp", "torch.distributed.checkpoint")
run = ForkedRanks(*_MODULES, limit_s=600, OMP_NUM_THREADS="1", SHOAL_TIMEOUT="120").run
