"""Two hosts as network namespaces, the cable between them, and a cluster over both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import LIMIT_S, Command
from fixtures import home_of_its_own

A, B = "10.77.0.1", "10.77.0.2"

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


def _ip(*words: str, namespace: str = "") -> None:
    command = [*(_within(namespace) if namespace else ()), "ip", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Host(Command):
    """The ``shoal`` command on one of the hosts, in a SHOAL_HOME of its own."""

    def __init__(self, home: Path, namespace: str, address: str, device: str):
        super().__init__(home, before=_within(namespace))
        self.namespace, self.address, self.device = namespace, address, device

    def env(self, **more: str) -> dict[str, str]:
        """GLOO_SOCKET_IFNAME names the device, because no host name resolves to this host's address. The device has one name on both
        hosts, because a job inherits the variables of its submitter."""
        return super().env(**{"GLOO_SOCKET_IFNAME": self.device, **more})

    def listen_to_wire(self, to: Path):
        """Starts a process that writes all traffic of the cable to the file `to`, until the process is ended."""
        running = self.program([sys.executable, "-c", _LISTEN, self.device, str(to)])
        running.said("listening")
        return running


class Hosts:
    def __init__(self, homes: tuple[Path, Path]):
        number = os.getpid()
        self._names = [f"shoal-{number}-{which}" for which in "ab"]
        self._devices = ["cable", "cable"]
        try:
            for name in self._names:
                _ip("netns", "add", name)
            (name, other), (device, far) = self._names, self._devices
            _ip("link", "add", device, "netns", name, "type", "veth", "peer", "name", far, "netns", other)
            for name, device, address in zip(self._names, self._devices, (A, B), strict=True):
                _ip("addr", "add", f"{address}/24", "dev", device, namespace=name)
                _ip("link", "set", "lo", "up", namespace=name)
                _ip("link", "set", device, "up", namespace=name)
        except OSError:
            self.end()
            raise
        self.a, self.b = (Host(*each) for each in zip(homes, self._names, (A, B), self._devices, strict=True))

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

    def pull_cable(self) -> None:
        _ip("link", "set", self._devices[0], "down", namespace=self._names[0])

    def end(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=LIMIT_S)


def two_hosts():
    if why := Hosts.why_not():
        pytest.skip(why)
    for home in home_of_its_own():
        other = home.parent / "other"
        other.mkdir(mode=0o700)
        hosts = Hosts((home, other))
        try:
            yield hosts
            for host in (hosts.b, hosts.a):
                host("stop", "--all")
                host.end()
        finally:
            hosts.end()


def cluster_of(hosts):
    said = hosts.a.json("start", "--head", "--node-ip-address", A, "--port", "0", "--num-cpus", "4", "--label", "host=a")
    cluster = SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], session=Path(said["session"]))
    cluster.token = cluster.session / "token"
    cluster.joined = join(hosts.b, cluster)
    return cluster


def join(host, cluster, *words, code=0):
    return host.json(
        "start", "--address", cluster.address, "--token-file", cluster.token, "--ca-fingerprint", cluster.fingerprint,
        "--num-cpus", "4", "--label", "host=b", *words, code=code,
    )  # fmt: skip


def drive(host, body, within=LIMIT_S, **env):
    driver = host.driver(ACTORS + body, **env)
    assert driver.code(within) == 0, driver.err
    return driver.out
