"""A cluster of two nodes, "a" and "b": on one host, or on two."""

from __future__ import annotations

import os
from types import SimpleNamespace

from launching.commands import LIMIT_S, Command
from launching.fixtures import home_of_its_own
from launching.hosts import ACTORS, A, join, two_hosts

KINDS = ("one host", "two hosts")

# The first lines of drivers, as in hosts.py: on("b") makes an actor on the node b.
DRIVER = (
    ACTORS
    + """
import time
from shoal.exceptions import GetTimeoutError, ObjectFreedError, ObjectLostError, ObjectStoreFullError, OwnerDiedError

GUARD_S = 60

@shoal.remote(num_cpus=1, max_concurrency=4)
class Holder:
    def __init__(self, *given):
        self.kept = {"given": given}

    def keep(self, name, refs):
        self.kept[name] = refs

    def drop(self, name):
        del self.kept[name]

    def give(self, name):
        return self.kept[name]

    def value(self, name):
        return shoal.get(self.kept[name])

    def put(self, value):
        return {"made": [shoal.put(value)]}

    def pass_on(self, name, other):
        shoal.get(other.keep.remote(name, self.kept[name]))

    def look(self, refs):
        arrays = shoal.get(refs)
        return [(a.nbytes, int(a[-1]), a.flags.writeable, a.flags.owndata) for a in arrays]

    def pid(self):
        return os.getpid()

def holder(host, *given):
    return Holder.options(label_selector={"host": host}).remote(*given)

def name_of(ref):
    return ref._publish(), ref._owner

def exists(name):
    from internals.core import session
    try:
        shoal.get(shoal.ObjectRef(session().fetch(*name)), timeout=GUARD_S)
    except ObjectFreedError:
        return False
    return True

def soon(condition):
    end = time.monotonic() + GUARD_S
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return met

# Memories of values that a node has, and how many bytes of each were written; its pid is in the list of nodes.
def written(host):
    (pid,) = (n["pid"] for n in shoal.nodes() if n["labels"].get("host") == host and n["state"] == "ALIVE")
    out = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if "shoal:value" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                seen = os.stat(f"/proc/{pid}/fd/{fd}")
                out[seen.st_ino] = seen.st_blocks * 512
        except OSError:
            pass
    return out

def memories(host):
    return set(written(host))

shoal.init(address=os.environ["HEAD"])
"""
)


def two_nodes(kind, *of_b):
    """Yields a and b (the commands on the two nodes), hosts (None on one host), the head's address, and the id of node b. ``of_b``:
    further options for b's start."""
    if kind == "two hosts":
        for hosts in two_hosts():
            said = hosts.a.json("start", "--head", "--host", A, "--port", "0", "--num-cpus", "4", "--label", "host=a")
            session = SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], token=f"{said['session']}/token")
            joined = join(hosts.b, session, *of_b)
            yield SimpleNamespace(a=hosts.a, b=hosts.b, hosts=hosts, address=said["address"], node=joined["node"])
        return
    for home in home_of_its_own():
        command = Command(home)
        head = command.json("start", "--head", "--num-cpus", "4", "--port", "0", "--label", "host=a")
        joined = command.json("start", "--address", head["address"], "--num-cpus", "4", "--label", "host=b", *of_b)
        yield SimpleNamespace(a=command, b=command, hosts=None, address=head["address"], node=joined["node"])
        command("stop")
        command.end()


def run(nodes, body, on="a", within=LIMIT_S):
    driver = getattr(nodes, on).driver(DRIVER + body, HEAD=nodes.address)
    assert driver.code(within) == 0, driver.err
    return driver.out


def pid_of(nodes, node):
    (pid,) = (n["pid"] for n in nodes.a.rows("nodes") if n["id"] == node)
    assert os.path.exists(f"/proc/{pid}")
    return pid
