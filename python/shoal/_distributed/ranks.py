"""The ranks of a mesh on this host: which of them share memory, their node, and the names of shared objects.

A process that a node started is attached to it already. Under plain torchrun the first rank on a host, elected through the process group's
store, starts a private node that ends with the ranks. It is head and node in one process, with unix sockets only.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shoal import _native
from shoal._core.attach import attach_worker
from shoal._core.local_cluster import start_local
from shoal._core.process import in_group, retry_delay_ms, started_by_node, state
from shoal._core.ucx import packaged_library
from shoal._core.variables import variable
from shoal.exceptions import InvalidArgument

# Seconds until a rank's wait for its peers fails, and until it warns.
TIMEOUT = float(variable("SHOAL_TIMEOUT", 600))
WARN_AFTER = 5.0
# The transport between hosts: "tcp", "tls" (TCP with encryption), "ucx", for collectives also "gloo". Empty: UCX on hosts with RDMA, else
# TCP.
TRANSPORT = os.environ.get("SHOAL_TRANSPORT", "")
# Seconds after which a host that answers nothing is lost; 0: the transport's own limit. Where the head reports lost nodes, the
# limit is longer than the head's: a link that comes back before the head's report then costs only a wait.
unanswered_s = 0.0
# True in an actor of Ray: Ray kills the children of the actor's process, and the node must not end before the other ranks have left it.
detaches_node = False


def network(kind: str = TRANSPORT) -> _native.Network:
    """Returns this rank's choices for data between hosts. The interface is that of ``SHOAL_INTERFACE`` (a name or an address), else the one
    with this host's address in the cluster. Under a launcher, that is the address by which this host reaches ``MASTER_ADDR``."""
    return _native.Network(
        kind=kind,
        interface=os.environ.get("SHOAL_INTERFACE", ""),
        host=_address_towards_master(),
        sealed=started_by_node(),
        ucx_library=packaged_library(),
        unanswered=unanswered_s,
    )


def _address_towards_master() -> str:
    if started_by_node() or not (master := os.environ.get("MASTER_ADDR")):
        return ""
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as towards:
            towards.connect(address)  # sends nothing
            return towards.getsockname()[0]
    except OSError:
        return ""


_named: dict[tuple[str, int], int] = {}


def forget_names() -> None:
    """Counts the requests of ``gang_name`` from 1 again, after another default process group with an empty store has begun."""
    _named.clear()


_attaching = threading.Lock()  # a lock, because ranks may be threads of one process


_LAUNCHERS_SET = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def require_process_group(backend: str | None = "gloo") -> None:
    """Initialises the default process group from the environment, if there is none. Raises InvalidArgument (a ValueError, like torch's)
    with torch's message if no launcher set that environment."""
    if dist.is_initialized():
        return
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        if all(variable(name) for name in _LAUNCHERS_SET):
            raise
        hint = "start the program with torchrun or shoal submit --num-workers, or run this in the loop of a shoal.train.Trainer"
        raise InvalidArgument(str(error), hint=hint) from error


def cpu_backend() -> str:
    """Returns the backend for a further process group of CPU tensors: Shoal's if the default one has it, because that ends all waits when a
    rank dies."""
    return "shoal" if "shoal" in dist.get_backend_config() else "gloo"


def default_mesh() -> DeviceMesh:
    """Returns a one-dimensional mesh of the default process group, on CUDA devices if NCCL is one of its backends."""
    require_process_group()
    on_devices = torch.cuda.is_available() and "nccl" in dist.get_backend_config()
    return init_device_mesh("cuda" if on_devices else "cpu", (dist.get_world_size(),))


def default_store() -> dist.Store:
    """Returns the store of the default process group."""
    return dist.distributed_c10d._get_default_store()


def gang_name(kind: str, ranks: tuple[int, ...], rank: int, store: dist.Store | None = None) -> str:
    """Returns a name for an object of one kind that these ranks share; the first of them makes it. ``store``: one of all these ranks, by
    default that of the default process group."""
    store, key = store or default_store(), f"shoal/{kind}/" + "-".join(map(str, ranks))
    # The number of requests, which is the same on all ranks, so that a new object gets a new name.
    count = _named[key, rank] = _named.get((key, rank), 0) + 1
    if count > 1:
        key += f"/{count}"
    if rank == 0:
        store.set(key, in_group(f"{kind}-{secrets.token_hex(4)}"))
    return store.get(key).decode()


def _host_key() -> str:
    """Returns a text that is equal for processes that share memory and the name space of abstract sockets.

    ``SHOAL_HOST`` overrides the kernel's answer, for tests and for containers that look alike.
    """
    if name := os.environ.get("SHOAL_HOST"):
        return name
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}-{os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Host:
    """The ranks of a mesh that share memory with this process (those of its node), including its own."""

    ranks: tuple[int, ...]
    shared: bool  # True if these are all ranks of the mesh
    host_of_rank: tuple[int, ...]  # by position in the mesh: the rank's host, numbered from 0 without gaps
    place_as: tuple[int, int]  # for a native ShardActor: this rank's position among the ranks at its head, and how many these are


def attach(ranks: tuple[int, ...], me: int | None = None, store: dist.Store | None = None) -> Host:
    """Opens this process's session, if there is none, at a node of its host. Every rank of the mesh must call it.

    ``me``: this process's rank. ``store``: a store in which the ranks have these numbers. By default, both are those of the default process
    group.
    """
    me, store = dist.get_rank() if me is None else me, store or default_store()
    key = _host_key()
    with _attaching:
        if state.session is None:
            _attach(store, key, me)
    key += f"/{state.session.node}"  # processes share memory through a node, and one host may have several nodes
    store.set(f"shoal/host/{me}", key)
    keys = [store.get(f"shoal/host/{r}").decode() for r in ranks]
    numbers = {k: n for n, k in enumerate(dict.fromkeys(keys))}
    local = tuple(r for r, k in zip(ranks, keys, strict=True) if k == key)
    one_head = local == ranks or started_by_node()
    return Host(local, local == ranks, tuple(numbers[k] for k in keys), (-1, 0) if one_head else (local.index(me), len(local)))


def _attach(store: dist.Store, key: str, rank: int) -> None:
    if started_by_node():
        attach_worker()
        return
    if store.add(f"shoal/node/{key}", 1) == 1:
        try:
            state.cluster, said = start_local({"CPU": _native.usable_cpus()}, remove_folder=True, python="", detach=detaches_node)
            _open(said["session"], rank, head=said["head_local"])
        except BaseException as error:
            store.set(f"shoal/node/{key}/at", json.dumps({"error": str(error)}))
            raise
        said["job"] = state.session.job
        # The cluster belongs to all ranks: it ends with the last of them, not with this one.
        state.cluster = None
        store.set(f"shoal/node/{key}/at", json.dumps(said))
    else:
        said = json.loads(store.get(f"shoal/node/{key}/at"))
        if "error" in said:
            raise InvalidArgument(f"the rank that should start this host's node could not: {said['error']}")
        _open(said["session"], rank, node=said["node"], job=said["job"])


def _open(folder: str, rank: int, head: str = "", node: str = "", job: str = "") -> None:
    state.session = _native.Session.open(
        folder=folder,
        head=head,
        node=node,
        job=job,
        role=f"rank {rank}",
        name="torchrun",
        print_logs=False,
        ends_job=False,
        retry_delay_s=retry_delay_ms() / 1000,
    )
