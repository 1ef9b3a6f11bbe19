"""Private names of shoal.checkpoint, that tests use."""
# ruff: noqa: F401

from shoal.checkpoint import _disk, _inspect, _keeping, _load, _plan, _preemption, _save, _saving, _snapshot, _store
from shoal.checkpoint._boxes import intersect, spans, tile
from shoal.checkpoint._contents import contents_of
from shoal.checkpoint._disk import LocalStore
from shoal.checkpoint._export import export
from shoal.checkpoint._inspect import diff, verify
from shoal.checkpoint._load import _Loading
from shoal.checkpoint._manifest import CHUNK, _checksum
from shoal.checkpoint._memory import _MADV_POPULATE_WRITE, Buffer, tensor_in
from shoal.checkpoint._other.records import Record, parse
from shoal.checkpoint._plan import Plan
from shoal.checkpoint._ranks import Ranks
from shoal.checkpoint._read import Reader
from shoal.checkpoint._saving import About, save_with
from shoal.checkpoint._shards import live_blocks
from shoal.checkpoint._snapshot import Snapshot, Staging
from shoal.checkpoint._store import RemoteStore, open_store
