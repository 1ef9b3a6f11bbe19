"""Names of modules in which earlier versions had public classes. Pickles of that time name them, and ``pickle`` looks in
``sys.modules``."""

import sys
from types import ModuleType

from shoal.spmd import _auto
from shoal.spmd._auto.costs import Machine
from shoal.spmd._auto.plan import Row, ShardingPlan
from shoal.spmd._layout.mesh import Mesh
from shoal.spmd._layout.sharding import ShardingType
from shoal.spmd._marks.explain import Explanation
from shoal.spmd._marks.marking import ShardingSpec
from shoal.spmd._names.hybrid_mesh import HybridMesh

NAMES: dict[str, tuple[type, ...]] = {
    "_auto": (Row, ShardingPlan),
    "_costs": (Machine,),
    "_explain": (Explanation,),
    "_hybrid_mesh": (HybridMesh,),
    "_marking": (ShardingSpec,),
    "_mesh": (Mesh,),
    "_sharding": (ShardingType,),
}

for _module, _classes in NAMES.items():
    _old = _auto if _module == "_auto" else sys.modules.setdefault(f"shoal.spmd.{_module}", ModuleType(f"shoal.spmd.{_module}", __doc__))
    vars(_old).update({cls.__name__: cls for cls in _classes})
