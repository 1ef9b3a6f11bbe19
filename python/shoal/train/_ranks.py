"""The environment variables of ranks that are actors: torchrun's, as ``shoal submit --num-workers`` sets them."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import dataclass

from shoal._core.process import session
from shoal.train._chaos.identity import Process


@dataclass(frozen=True)
class Place:
    """The place of a rank: its node's id, the host's address, a TCP port that was free on that host, and its process."""

    node: str
    host: str
    port: int
    process: Process | None = None


def own_place(port: int | None = None) -> Place:
    """Returns the place of this process. Raises OSError if no port is given and none is free."""
    return Place(session().node, session().host, free_port() if port is None else port, Process.with_pid(os.getpid()))


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


def environments(places: list[Place]) -> list[dict[str, str]]:
    """Returns each rank's variables. ``places``: by rank.

    Local ranks count within a node, nodes are numbered in the order of their first ranks, and all ranks meet at rank 0.
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
    return found
