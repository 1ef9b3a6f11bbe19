"""Shoal: a distributed runtime of actors for fully sharded training.

``import shoal as ray`` is how a user of Ray tries it. From the source tree: ``PYTHONPATH=python:bazel-bin/python`` (the sources here, the
extension there, one package).
"""

import importlib
from pkgutil import extend_path

# Lets `shoal._native` be found in bazel-bin; does nothing in an installed wheel.
__path__ = extend_path(__path__, __name__)

from shoal import exceptions
from shoal._client import (
    ObjectRef,
    available_resources,
    cluster_resources,
    get,
    init,
    is_initialized,
    kill,
    nodes,
    put,
    shutdown,
    wait,
)
from shoal._native import __version__
from shoal._remote import get_actor, remote



def __getattr__(name: str):
    if name != "util":
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return importlib.import_module("shoal.util")


__all__ = [
    "ObjectRef",
    "__version__",
    "available_resources",
    "cluster_resources",
    "exceptions",
    "get",
    "get_actor",
    "init",
    "is_initialized",
    "kill",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "wait",
]
