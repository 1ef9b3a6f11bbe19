"""Private names of actors, objects, functions and the session of a process, that tests use."""
# ruff: noqa: F401

from shoal import _native
from shoal._actors import ownership
from shoal._actors.calls import RELEASE, pack_call
from shoal._actors.ownership import actor_ownership
from shoal._core import process
from shoal._core.cuda_start import ImportWatch, driver_started
from shoal._core.local_cluster import binary, package_path
from shoal._core.process import session, state
from shoal._core.telemetry import telemetry
from shoal._driver import init
from shoal._objects import refs
from shoal._objects.refs import load
from shoal._runtime_env import ignored
from shoal._tasks import pool
from shoal._tasks.pool import FunctionPool
