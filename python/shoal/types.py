"""``ObjectRef`` for annotations: ``ObjectRef[int]``."""

from shoal._refs import ObjectRef

__all__ = ["ObjectRef"]
