"""Shoal: a distributed runtime of actors for fully sharded training.

From the source tree: ``PYTHONPATH=python:bazel-bin/python`` (the sources here, the extension there, one package).
"""

from pkgutil import extend_path

# Lets `shoal._native` be found in bazel-bin; does nothing in an installed wheel.
__path__ = extend_path(__path__, __name__)

from shoal._native import __version__

__all__ = ["__version__"]
