"""Where the trainings of a storm run: a cluster of one host or two, and a small disk for their checkpoints."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from faults import WEIGHTS, WEIGHTS_OF_HOSTS
from launching.commands import Cluster, Command
from launching.fixtures import home_of_its_own
from launching.hosts import Hosts, cluster_of, join, several_hosts

_DISK = "size=512k,nr_inodes=400"  # room for about six checkpoints


@dataclass(frozen=True)
class Disk:
    """``folder``: has the folder ``disk``, with the checkpoints, and files by which faults reach the workers. ``small``: the latter is
    a file system of its own, so it can be full."""

    folder: Path
    small: bool

    @property
    def filler(self) -> Path:
        return self.folder / "disk" / "filler"

    @property
    def slow(self) -> Path:
        return self.folder / "slow"

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.filler, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def heal(self) -> None:
        for path in self.filler, self.slow:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "disk"
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(path)]
        small = subprocess.run(mount, capture_output=True).returncode == 0
        try:
            yield Disk(Path(folder), small)
        finally:
            if small:
                subprocess.run(["umount", "-l", str(path)], check=True)


@dataclass
class Place:
    """A cluster in which trainings run. ``program``: starts a program beside its driver's node. ``commands``: one per host. ``rejoin``:
    lets the second of ``hosts`` join again after the cluster has given it up."""

    cluster: Cluster
    program: Callable[[list[str], dict], subprocess.Popen]
    commands: Sequence[Command]
    weights: dict[str, int]
    case: dict
    disk: Disk
    hosts: Hosts | None = None
    rejoin: Callable[[], object] | None = None

    def with_disk(self, of: Disk) -> Place:
        """A disk that cannot be full has no such fault."""
        weights = {kind: weight for kind, weight in self.weights.items() if of.small or kind != "full"}
        return replace(self, disk=of, weights=weights, case=self.case | {"folder": str(of.folder)})


@contextlib.contextmanager
def one_host() -> Iterator[Place]:
    for home in home_of_its_own():
        command = Command(home)
        cluster = command.start("--include-dashboard", "false", cpus=3)
        try:
            yield Place(cluster, starter(command), [command], WEIGHTS, {"bounds": (1, 3)}, Disk(home, False))
        finally:
            command("stop")


@contextlib.contextmanager
def two_hosts(seats: int = 2) -> Iterator[Place]:
    """``seats``: the number of workers for which each host has room."""
    for hosts in several_hosts(2, network="10.79.3"):
        room = ("--resource", f"seat={seats}")
        of = cluster_of(hosts, dict.fromkeys("ab", room))
        case = {"bounds": (1, 2 * seats), "resources": {"CPU": 0, "seat": 1}}
        cluster, nowhere = Cluster(of.address, of.session), Disk(hosts.a.home, False)
        rejoin = partial(join, hosts.b, of, *room)
        yield Place(cluster, starter(hosts.a), hosts.all, WEIGHTS_OF_HOSTS, case, nowhere, hosts, rejoin)


def starter(command: Command) -> Callable[[list[str], dict], subprocess.Popen]:
    def start(argv: list[str], streams: dict) -> subprocess.Popen:
        env = command.env(OMP_NUM_THREADS="1", SHOAL_TIMEOUT="60")
        return subprocess.Popen([*command.before, *argv], env=env, cwd=command.home, stdin=subprocess.DEVNULL, **streams)

    return start
