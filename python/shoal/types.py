"""``ObjectRef`` for annotations: ``ObjectRef[int]``."""

from shoal._objects.refs import ObjectRef

__all__ = ["ObjectRef"]
