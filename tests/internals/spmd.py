"""Private names of shoal.spmd, that tests use."""
# ruff: noqa: F401

from shoal.spmd._auto import choice
from shoal.spmd._controller import recording
from shoal.spmd._engine import execution
from shoal.spmd._engine.tensor import Tensor
from shoal.spmd._fsdp.module_tree import ModuleTree
from shoal.spmd._layout import processes
from shoal.spmd._layout.array import Array
from shoal.spmd._layout.processes import world
from shoal.spmd._layout.sharding import ShardingType
from shoal.spmd._marks.marking import text_of, type_of
