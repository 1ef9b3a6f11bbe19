"""The choice of each rank's buddy, which holds the replica of its step records. Without torch, which a driver may not need."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def buddies(hosts: Sequence[Hashable]) -> tuple[int, ...]:
    """Returns, by rank, the rank of another host that holds its replica; -1 for all if there is one host. ``hosts``: by rank.

    Ranks hold numbers of replicas that are as equal as possible. A rank of the next host comes first, so that the replicas of one host's
    ranks are on few other hosts. Every process computes the same buddies.
    """
    order = list(dict.fromkeys(hosts))
    held = [0] * len(hosts)
    found = []
    for rank, host in enumerate(hosts):
        at = order.index(host)
        others = [r for r, h in enumerate(hosts) if h != host]
        buddy = min(others, key=lambda r: (held[r], (order.index(hosts[r]) - at) % len(order), (r - rank) % len(hosts)), default=-1)
        if buddy >= 0:
            held[buddy] += 1
        found.append(buddy)
    return tuple(found)
