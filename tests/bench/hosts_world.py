"""Hosts of a bench: network namespaces with a core each, links of a rate, a cluster over them, and processes in them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import types
from pathlib import Path

from launch import HERE, OURS, Failed, environment

NETWORK = "10.78.0"
SECOND, SECOND_NETWORK = "second", "10.78.1"  # the second cable between two hosts
PORT = 29611  # the peers' rendezvous on the first host


class World:
    """``count`` hosts and a cluster over them. Host i has the core i, modulo the number of cores. Without ``pinned``, hosts have all cores.

    A host has room for one rank that needs the resource `one_each`, and for two that need `two_each`. The first host has room for four that
    need `together`. ``second_cable``: two hosts have a second network, which the cluster uses.
    """

    def __init__(self, count: int, pinned: bool = True, second_cable: bool = False):
        from launching import hosts  # late: only some benches need pytest, which it imports

        self._module = hosts
        if why := hosts.Hosts.why_not():
            raise Failed(why)
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-bench."))
        homes = [self.folder / f"host{i}" for i in range(count)]
        for home in homes:
            home.mkdir(mode=0o700)
        cores = sorted(os.sched_getaffinity(0))
        self._made = self._module.Hosts(homes, NETWORK, [cores[i % len(cores)] for i in range(count)] if pinned else None)
        self.hosts, self._second_cable = self._made.all, second_cable
        if second_cable:
            self._made.add_cable(SECOND, SECOND_NETWORK)
        self.set_rate, self.cut = self._made.set_rate, self._made.cut

    def start(self) -> None:
        room = ["--resource", "one_each=1", "--resource", "two_each=2", "--include-dashboard", "0"]
        words = {h.name: [*room, *(["--resource", "together=4"] if h is self.hosts[0] else [])] for h in self.hosts}
        with self._clean_environment():
            self.cluster = self._over_second_cable(words) if self._second_cable else self._module.cluster_of(self._made, words)

    def _over_second_cable(self, words: dict[str, list[str]]) -> types.SimpleNamespace:
        for host in self.hosts:
            host.names_device = False  # GLOO_SOCKET_IFNAME, which would choose the first cable
        a, b = self.hosts
        said = a.json("start", "--head", "--interface", SECOND, "--port", "0", "--num-cpus", "4", *words[a.name])
        token = Path(said["session"]) / "token"
        cluster = types.SimpleNamespace(address=said["address"], fingerprint=said["ca_fingerprint"], token=token)
        self._module.join(b, cluster, "--interface", SECOND, *words[b.name])
        return cluster

    def end(self) -> None:
        with self._clean_environment():
            for host in reversed(self.hosts):
                with contextlib.suppress(Exception):
                    host("stop", "--all")
        self._made.end(kill=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    @contextlib.contextmanager
    def _clean_environment():
        """Commands of ``Host`` inherit this process's environment."""
        before = dict(os.environ)
        kept = environment("", 1)
        try:
            for name in [n for n in os.environ if n not in kept]:
                del os.environ[name]
            os.environ.update(kept)
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    # ---- processes ----

    def popen(self, host, argv, **env: str) -> subprocess.Popen:
        """Starts a program on a host, as a process group of its own."""
        with self._clean_environment():
            values = host.env(**env)
        return subprocess.Popen(
            [*host.before, *map(str, argv)],
            env=values,
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def submit(self, num_workers: int, resource: str, script: str, *args, limit: float = 300, **env: str) -> dict:
        """Runs ranks of Shoal as a user does; returns what rank 0 wrote to its --out."""
        out = self.folder / "out.json"
        argv = [OURS / "shoal", "submit", "--resource", f"{resource}=1", "--num-workers", num_workers, "--num-cpus", 0]
        return self._result([self.popen(self.hosts[0], [*argv, HERE / script, *args, "--out", out], **env)], out, limit)

    def torchrun(self, ranks_per_host: int, script: str, *args, limit: float = 300) -> dict:
        """Runs the ranks of a peer with torchrun's variables; returns what rank 0 wrote to its --out."""
        out, world = self.folder / "out.json", ranks_per_host * len(self.hosts)
        processes = []
        for index, host in enumerate(self.hosts):
            for local in range(ranks_per_host):
                env = {
                    "RANK": index * ranks_per_host + local,
                    "LOCAL_RANK": local,
                    "WORLD_SIZE": world,
                    "LOCAL_WORLD_SIZE": ranks_per_host,
                    "MASTER_ADDR": self.hosts[0].address,
                    "MASTER_PORT": PORT,
                }
                argv = [OURS / "python", HERE / script, *args, "--out", out]
                processes.append(self.popen(host, argv, **{k: str(v) for k, v in env.items()}))
        return self._result(processes, out, limit)

    def wait(self, processes: list[subprocess.Popen], limit: float) -> list[str]:
        """Returns the outputs of processes that must succeed, and ends all of them."""
        until, said = time.monotonic() + limit, []
        try:
            for process in processes:
                try:
                    said.append(process.communicate(timeout=max(0.1, until - time.monotonic()))[0])
                except subprocess.TimeoutExpired as error:
                    raise Failed(f"not done within {limit:g} s") from error
                if process.returncode:
                    raise Failed(f"exit code {process.returncode}: {_reason(said[-1])}")
        finally:
            for process in processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process.stdout.close()
        return said

    def _result(self, processes: list[subprocess.Popen], out: Path, limit: float) -> dict:
        out.unlink(missing_ok=True)
        said = self.wait(processes, limit)
        if not out.exists():
            raise Failed(f"rank 0 wrote nothing: {_reason(said[0])}")
        return json.loads(out.read_text())

    def raw(self, both_ways: bool, seconds: float) -> float:
        """Bytes per second of TCP, of the slowest direction. Each host sends to the next one; one way: only the first one sends."""
        argv = [OURS / "python", HERE / "raw_tcp.py", "--seconds", str(seconds)]
        senders = range(len(self.hosts)) if both_ways else range(1)
        receivers = [(i + 1) % len(self.hosts) for i in senders]
        processes = []
        for i, host in enumerate(self.hosts):
            to = ["--to", self.hosts[(i + 1) % len(self.hosts)].address] if i in senders else []
            if to or i in receivers:
                processes.append(self.popen(host, [*argv, *to, *(["--receive"] if i in receivers else [])]))
        rates = [json.loads(line) for said in self.wait(processes, seconds + 30) for line in said.splitlines()]
        return min(rate["bytes_per_second"] for rate in rates)


def _reason(output: str) -> str:
    """The first line that names an exception, or the last lines."""
    lines = [line for line in output.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b[A-Za-z.]*(Error|exceptions\.[A-Z]\w+): ", line)]
    return " | ".join(named[:1] or lines[-3:])[:500]


@contextlib.contextmanager
def world(count: int, pinned: bool = True, second_cable: bool = False):
    made = World(count, pinned, second_cable)
    try:
        made.start()
        yield made
    except AssertionError as error:
        raise Failed(f"a command failed: {error}"[:600]) from error
    finally:
        made.end()
