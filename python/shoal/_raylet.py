"""Names that programs import from Ray's extension module."""

from shoal._core.ids import ActorID, JobID, NodeID, ObjectID, PlacementGroupID, TaskID, UniqueID, WorkerID
from shoal._objects.refs import ObjectRef
from shoal._objects.streams import DynamicObjectRefGenerator, ObjectRefGenerator

__all__ = [
    "ActorID",
    "DynamicObjectRefGenerator",
    "JobID",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
]
