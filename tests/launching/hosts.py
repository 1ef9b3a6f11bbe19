"""Hosts as network namespaces, the cables that join them, and a cluster over all of them.

Two hosts are joined by one cable, more by a switch (a bridge in a namespace of its own) with a cable to each. Links have a rate, can be cut
and healed, and count their bytes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from launching.commands import LIMIT_S, Command
from launching.fixtures import home_of_its_own

NETWORK = "10.77.0"
A, B = f"{NETWORK}.1", f"{NETWORK}.2"

_numbers = itertools.count()  # Hosts that this process makes are numbered

# The first lines of drivers: on(host) makes an actor on the node whose label is host=HOST.
ACTORS = """
import os, sys
import numpy as np
import shoal

@shoal.remote(num_cpus=1)
class Echo:
    def echo(self, value):
        return value

    def node(self):
        return shoal.get_runtime_context().get_node_id()

    def ask(self, other, value):
        return shoal.get(other.echo.remote(value))

    def items(self, sizes):
        for size in sizes:
            yield np.arange(size, dtype=np.uint8)

    def total(self, *values):
        return len(values), sum(len(v) for v in values)

def on(host):
    return Echo.options(label_selector={"host": host}).remote()
"""

# A program that records the raw frames of a network device in a file.
_LISTEN = """
import signal, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
wire.bind((sys.argv[1], 0))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(sys.argv[2], "wb", buffering=0) as file:
    print("listening", flush=True)
    while True:
        file.write(wire.recv(1 << 16))
"""


def _within(namespace: str) -> tuple[str, ...]:
    """A command prefix that enters the namespace. ``ip netns exec`` and ``ip -n`` would mount a /sys of their own, which a chroot
    forbids."""
    return ("nsenter", f"--net=/run/netns/{namespace}")


TC = shutil.which("tc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "tc"  # a user's PATH may lack its folder


def _run(namespace: str, *words: str) -> str:
    command = [*(_within(namespace) if namespace else ()), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _ip(*words: str, namespace: str = "") -> None:
    _run(namespace, "ip", *words)


@dataclass(frozen=True)
class Traffic:
    """Bytes that a host's device has sent and received, by the counters of the device."""

    sent: int
    received: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


class Host(Command):
    """The ``shoal`` command on one of the hosts, in a SHOAL_HOME of its own. ``core``: the core that all of its processes share; None: all
    cores."""

    device = "cable"  # one name on all hosts, because a job inherits the variables of its submitter
    names_device = True  # in the environment of commands

    def __init__(self, home: Path, name: str, namespace: str, address: str, core: int | None = None):
        super().__init__(home, before=_within(namespace) + (() if core is None else ("taskset", "-c", str(core))))
        self.name, self.namespace, self.address = name, namespace, address

    def env(self, **more: str) -> dict[str, str]:
        """GLOO_SOCKET_IFNAME names the device, because no host name resolves to this host's address."""
        return super().env(**{**({"GLOO_SOCKET_IFNAME": self.device} if self.names_device else {}), **more})

    def listen_to_wire(self, to: Path):
        """Starts a process that writes all traffic of the cable to the file `to`, until the process is ended."""
        running = self.program([sys.executable, "-c", _LISTEN, self.device, str(to)])
        running.said("listening")
        return running

    def traffic(self, device: str = "") -> Traffic:
        (link,) = json.loads(_run(self.namespace, "ip", "-json", "-s", "link", "show", "dev", device or self.device))
        return Traffic(link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"])


class Hosts:
    """Hosts `a`, `b` and so on, one per home, with the addresses `network`.1, .2 and so on. ``cores``: the core of each host."""

    def __init__(self, homes: Sequence[Path], network: str = NETWORK, cores: Sequence[int] | None = None):
        here = f"shoal-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{here}-switch" if len(homes) > 2 else ""
        self.all = [
            Host(home, name, f"{here}-{name}", f"{network}.{i + 1}", None if cores is None else cores[i])
            for i, (home, name) in enumerate(zip(homes, "abcdefgh", strict=False))
        ]
        self._namespaces = [h.namespace for h in self.all] + [self._switch] * (len(homes) > 2)
        try:
            for name in self._namespaces:
                _ip("netns", "add", name)
            self._join()
            for host in self.all:
                _ip("addr", "add", f"{host.address}/24", "dev", host.device, namespace=host.namespace)
                _ip("link", "set", "lo", "up", namespace=host.namespace)
                _ip("link", "set", host.device, "up", namespace=host.namespace)
        except OSError:
            self.end()
            raise
        self.a, self.b = self.all[:2]

    def _join(self) -> None:
        if not self._switch:
            (one, other), device = self._namespaces, Host.device
            _ip("link", "add", device, "netns", one, "type", "veth", "peer", "name", device, "netns", other)
            return
        _ip("link", "add", "switch", "type", "bridge", namespace=self._switch)
        _ip("link", "set", "switch", "up", namespace=self._switch)
        for host in self.all:
            port = self._port(host)
            _ip("link", "add", port, "type", "veth", "peer", "name", host.device, "netns", host.namespace, namespace=self._switch)
            _ip("link", "set", port, "master", "switch", "up", namespace=self._switch)

    def add_cable(self, device: str, network: str) -> None:
        """Joins two hosts by a further cable, at which they have the addresses `network`.1 and .2."""
        one, other = self._namespaces
        _ip("link", "add", device, "netns", one, "type", "veth", "peer", "name", device, "netns", other)
        for i, namespace in enumerate((one, other), 1):
            _ip("addr", "add", f"{network}.{i}/24", "dev", device, namespace=namespace)
            _ip("link", "set", device, "up", namespace=namespace)

    def _port(self, host: Host) -> str:
        return f"port{self.all.index(host)}"

    def _ends(self, host: Host) -> list[tuple[str, str]]:
        """The ends of a host's cable that belong to it, as (namespace, device): between two hosts, each owns one end."""
        ends = [(host.namespace, host.device)]
        return [*ends, (self._switch, self._port(host))] if self._switch else ends

    def set_rate(self, gbit: float | None) -> None:
        """Limits each direction of each link to so many Gbit/s; None: no limit."""
        for namespace, device in (end for host in self.all for end in self._ends(host)):
            with contextlib.suppress(OSError):  # there was no limit
                _run(namespace, TC, "qdisc", "del", "dev", device, "root")
            if gbit:
                limit = ("rate", f"{gbit:g}gbit", "burst", "256kb", "latency", "20ms")
                _run(namespace, TC, "qdisc", "add", "dev", device, "root", "tbf", *limit)

    def cut(self, host: Host) -> None:
        """Ends a host's link: frames of both directions are lost, and no process gets an error at once."""
        namespace, device = self._ends(host)[-1]
        _ip("link", "set", device, "down", namespace=namespace)

    def heal(self, host: Host) -> None:
        namespace, device = self._ends(host)[-1]
        _ip("link", "set", device, "up", namespace=namespace)

    def pull_cable(self) -> None:
        self.cut(self.a)

    def lose(self, host: Host) -> None:
        """The host's link ends, then all of its processes: no other host gets an error at once."""
        self.cut(host)
        self._kill(host.namespace)

    @staticmethod
    def _kill(namespace: str) -> None:
        while left := subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, timeout=LIMIT_S).stdout.split():
            for pid in map(int, left):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self, kill: bool = False) -> None:
        """Removes the hosts. ``kill``: ends the processes that are left in them; otherwise those keep their namespaces."""
        for name in self._namespaces if kill else ():
            self._kill(name)
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=LIMIT_S)

    @staticmethod
    def why_not() -> str:
        """The reason why this machine cannot create the hosts, or ""."""
        if os.geteuid() != 0:
            return "network namespaces are made by root"
        if shutil.which("ip") is None:
            return "the command `ip` (iproute2) is not installed"
        name = f"shoal-{os.getpid()}-t"
        try:
            _ip("netns", "add", name)
            _ip("link", "set", "lo", "up", namespace=name)
        except OSError as error:
            return f"no network namespaces here: {error}"
        finally:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=LIMIT_S)
        return ""


def several_hosts(count: int, network: str = NETWORK):
    if why := Hosts.why_not():
        pytest.skip(why)
    for home in home_of_its_own():
        homes = [home, *(home.parent / f"other{i}" for i in range(1, count))]
        for other in homes[1:]:
            other.mkdir(mode=0o700)
        hosts, stopped = Hosts(homes, network), False
        try:
            yield hosts
            for host in reversed(hosts.all):
                host("stop", "--all")
                host.end()
            stopped = True
        finally:
            hosts.end(kill=not stopped)


def two_hosts():
    yield from several_hosts(2)


def cluster_of(hosts: Hosts, words: dict[str, Sequence[str]] | None = None):
    """Starts a cluster over all hosts. ``words``: further options of a host's start, by the host's name."""
    words = words or {}
    said = hosts.a.json(
        "start", "--head", "--node-ip-address", hosts.a.address, "--port", "0", "--num-cpus", "4", "--label", "host=a", *words.get("a", ())
    )  # fmt: skip
    cluster = SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], session=Path(said["session"]))
    cluster.token = cluster.session / "token"
    cluster.joined, *_ = [join(host, cluster, *words.get(host.name, ())) for host in hosts.all[1:]]
    return cluster


def join(host: Host, cluster, *words: str, code: int = 0):
    return host.json(
        "start", "--address", cluster.address, "--token-file", cluster.token, "--ca-fingerprint", cluster.fingerprint,
        "--num-cpus", "4", "--label", f"host={host.name}", *words, code=code,
    )  # fmt: skip


def drive(host, body, within=LIMIT_S, **env):
    driver = host.driver(ACTORS + body, **env)
    assert driver.code(within) == 0, driver.err
    return driver.out


def run_ranks(host: Host, program: Path, *words: str, code: int = 0, **env: str):
    """Runs hosts_exchange.py on each of two hosts, which have the resource `one_each`. Returns what its ranks print, by rank. If `code` is
    not 0, the job has to fail; then returns its output."""
    done = host(
        "submit", "--resource", "one_each=1", "--num-workers", "2", "--num-cpus", "0", program, *words,
        env=host.env(**env),
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert (done.returncode == 0) == (code == 0), text
    if code:
        return text
    found = {int(rank): json.loads(said) for rank, said in re.findall(r"found (\d) (\{.*\})", text)}
    assert sorted(found) == [0, 1], text
    return found
