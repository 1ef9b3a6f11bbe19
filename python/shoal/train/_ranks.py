"""The environment variables of ranks that are actors: torchrun's, as ``shoal submit --num-workers`` sets them, and their devices'."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import dataclass

from shoal._core.process import session
from shoal.train._chaos.identity import Process


@dataclass(frozen=True)
class Place:
    """The place of a rank: its node's id, the host's address, a TCP port that was free on that host, its process, and its CUDA device as
    ``CUDA_VISIBLE_DEVICES`` names it (empty: none)."""

    node: str
    host: str
    port: int
    process: Process | None = None
    device: str = ""


def own_place(port: int | None = None) -> Place:
    """Returns the place of this process. Raises OSError if no port is given and none is free."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return Place(session().node, session().host, free_port() if port is None else port, Process.with_pid(os.getpid()), device)


def free_port() -> int:
    """Returns a free TCP port of this host, outside the kernel's range of ephemeral ports. Raises OSError if there is none."""
    for _ in range(200):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no free TCP port between 20000 and 32000")


def environments(places: list[Place], elastic: bool = False) -> list[dict[str, str]]:
    """Returns each rank's variables. ``places``: by rank. ``elastic``: the ranks change while their processes run, and CUDA reads its
    variables once. So they name no devices: each rank sees its own one.

    Local ranks count within a node, nodes are numbered in the order of their first ranks, and all ranks meet at rank 0. Ranks with a device
    see the devices of all ranks of their node, in the order of these ranks: so ``torch.cuda.set_device(LOCAL_RANK)`` takes a rank's own,
    and copies between processes find the others'. ``SHOAL_LOCAL_DEVICE`` is the number of a rank's own device among them. Ranks of a node
    that share a device get the transport ``cuda_ipc``, because NCCL refuses them; a worker that has another keeps it.
    """
    ranks: dict[str, list[int]] = {}  # by node
    for rank, place in enumerate(places):
        ranks.setdefault(place.node, []).append(rank)
    found = []
    for rank, place in enumerate(places):
        values = {
            "RANK": rank,
            "WORLD_SIZE": len(places),
            "LOCAL_RANK": ranks[place.node].index(rank),
            "LOCAL_WORLD_SIZE": len(ranks[place.node]),
            "GROUP_RANK": list(ranks).index(place.node),
            "GROUP_WORLD_SIZE": len(ranks),
            "MASTER_ADDR": places[0].host,
            "MASTER_PORT": places[0].port,
            "TORCHELASTIC_RESTART_COUNT": 0,
        }
        found.append({name: str(value) for name, value in values.items()})
    if elastic:
        return found
    for of_node in ranks.values():
        devices = [places[rank].device for rank in of_node]
        if not all(devices):
            continue
        visible = list(dict.fromkeys(devices))
        for rank, device in zip(of_node, devices, strict=True):
            found[rank] |= {"CUDA_VISIBLE_DEVICES": ",".join(visible), "SHOAL_LOCAL_DEVICE": str(visible.index(device))}
    if any(place.device and sum((p.node, p.device) == (place.node, place.device) for p in places) > 1 for place in places):
        for variables in found:
            variables["SHOAL_DEVICE_TRANSPORT"] = "cuda_ipc"
    return found
