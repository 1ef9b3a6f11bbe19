"""``cloudpickle``, which pickles what Shoal sends. The name is Ray's."""

from cloudpickle import *  # noqa: F403
from cloudpickle import CloudPickler, Pickler, __version__, dump, dumps, load, loads

__all__ = ["CloudPickler", "Pickler", "__version__", "dump", "dumps", "load", "loads"]
