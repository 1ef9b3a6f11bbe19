"""The ranks of a mesh on this host: which of them share memory, the node that lends it, and a name for what they share.

A process that a node started is attached to it already. Under plain torchrun the first rank to arrive on a host, elected through the
process group's store, starts a private node (head and node in one process, unix sockets only) that ends with the ranks.
"""

from __future__ import annotations

import json
import os
import secrets

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shoal import _native
from shoal._runtime import attach_worker, read_token, start_local, started_by_node, state
from shoal.exceptions import InvalidArgument, Unimplemented

# How long a rank waits for its peers, and when it says so (seconds).
TIMEOUT = float(os.environ.get("SHOAL_TIMEOUT", 600))
WARN_AFTER = 5.0


def require_process_group() -> None:
    """There is a default process group; it is initialised from the environment if need be."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def default_mesh() -> DeviceMesh:
    """One dimension over the default process group."""
    require_process_group()
    return init_device_mesh("cpu", (dist.get_world_size(),))


def gang_name(kind: str, ranks: tuple[int, ...], rank: int) -> str:
    """A name for what these ranks of the process group share, of one kind: the first of them makes it."""
    store, key = dist.distributed_c10d._get_default_store(), f"shoal/{kind}/" + "-".join(map(str, ranks))
    if rank == 0:
        store.set(key, f"{kind}-{secrets.token_hex(4)}")
    return store.get(key).decode()


def _host_key() -> str:
    """Processes with the same key share memory and a name space of abstract sockets."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}-{os.stat('/proc/self/ns/net').st_ino}"


def attach(ranks: tuple[int, ...]) -> None:
    """Opens this process's session, if there is none, at a node that all ranks of the mesh share."""
    me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    key = _host_key()
    store.set(f"shoal/host/{me}", key)
    elsewhere = [r for r in ranks if store.get(f"shoal/host/{r}").decode() != key]
    if elsewhere:
        raise Unimplemented(
            f"rank {me} shares no memory with ranks {elsewhere}: sharding between hosts is not in this release",
            hint="run all ranks of a mesh on one host and in one network namespace",
        )
    if state.session is not None:
        return
    if started_by_node():
        attach_worker()
        return
    if store.add(f"shoal/node/{key}", 1) == 1:
        try:
            state.cluster, said = start_local({"CPU": len(os.sched_getaffinity(0))}, remove_folder=True, python="")
            _open(said["session"], head=said["head_local"])
        except BaseException as error:
            store.set(f"shoal/node/{key}/at", json.dumps({"error": str(error)}))
            raise
        said["job"] = state.session.job
        # The cluster belongs to all ranks: it ends when the last of them is gone, not with this one.
        state.cluster = None
        store.set(f"shoal/node/{key}/at", json.dumps(said))
    else:
        said = json.loads(store.get(f"shoal/node/{key}/at"))
        if "error" in said:
            raise InvalidArgument(f"the rank that should start this host's node could not: {said['error']}")
        _open(said["session"], node=said["node"], job=said["job"])


def _open(folder: str, head: str = "", node: str = "", job: str = "") -> None:
    state.session = _native.Session.open(
        token=read_token(folder),
        head=head,
        node=node,
        job=job,
        role=f"rank {dist.get_rank()}",
        name="torchrun",
        print_logs=False,
        ends_job=False,
    )
