"""Old names of functions and classes in pickles that outlive a release.

The head's store has the handles of named actors and the creation specs of detached ones. Pickles that C++
programs make name ``_handle._foreign`` (actors/api/context/launch.cc). ``pickle`` finds modules in ``sys.modules``.
"""

import sys
from types import ModuleType

from shoal._actors import actor_class, handle
from shoal._core import ids, serialize
from shoal._objects import refs
from shoal._tasks import functions, remote_function

_NAMES = {
    "_handle": (handle._foreign, handle._method_of, handle._revive_handle),
    "_ids": (ids.ActorID, ids.JobID, ids.NodeID, ids.ObjectID, ids.PlacementGroupID, ids.TaskID, ids.UniqueID, ids.WorkerID),
    "_refs": (refs._fetch,),
    "_remote": (actor_class.ActorClass, remote_function.RemoteFunction),
    "_serialize": (serialize._array, serialize._leaf, serialize._set_attributes, serialize._strided, serialize._tensor),
    "_tasks": (functions.FunctionWorker,),
}

for _module, _values in _NAMES.items():
    _old = sys.modules[f"shoal.{_module}"] = ModuleType(f"shoal.{_module}", __doc__)
    vars(_old).update({value.__name__: value for value in _values})
