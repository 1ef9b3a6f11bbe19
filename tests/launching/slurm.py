"""Slurm on several hosts: a slurmctld on the first one, and a slurmd on each, with one munged for all."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from internals.core import binary

from launching.commands import LIMIT_S, Running
from launching.hosts import Host, Hosts, several_hosts
from launching.leftovers import wait_until

_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # a user's PATH may lack these folders

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={silence_s}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """``folder`` has configuration, keys and logs. Hosts have the names shoal-a, shoal-b and so on."""

    def __init__(self, folder: Path, hosts: Hosts, silence_s: int):
        self.folder, self.hosts = folder, hosts
        self._daemons: dict[str, subprocess.Popen] = {}
        (folder / "state").mkdir()
        for host in hosts.all:
            (folder / self.name(host)).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        nodes = "\n".join(f"NodeName={self.name(host)} NodeAddr={host.address} CPUs=2" for host in hosts.all)
        first = f"{self.name(hosts.a)}({hosts.a.address})"
        text = _CONFIGURATION.format(first=first, nodes=nodes, folder=folder, silence_s=silence_s)
        (folder / "slurm.conf").write_text(text)

    @staticmethod
    def name(host: Host) -> str:
        return f"shoal-{host.name}"

    def start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        wait_until((self.folder / "munge.socket").exists, LIMIT_S, "the socket of munged")
        self._start("slurmctld", *self._on(self.hosts.a), "slurmctld", "-D")
        for host in self.hosts.all:
            self.start_host(host)
        wait_until(lambda: len(self.states("idle")) == len(self.hosts.all), LIMIT_S, "idle hosts")

    def start_host(self, host: Host) -> None:
        self._start(self.name(host), *self._on(host), "slurmd", "-D", "-N", self.name(host))

    def states(self, state: str) -> list[str]:
        """The names of the hosts with this state."""
        return self("sinfo", "--noheader", "--Node", f"--states={state}", "--format=%N").stdout.split()

    def lose(self, host: Host) -> None:
        """The host loses its network and all of its processes at once."""
        self.hosts.lose(host)
        self._daemons.pop(self.name(host)).wait()

    @property
    def command(self) -> Path:
        """`shoal` with a SHOAL_HOME of each host's own, because the hosts of a test share a disk."""
        path = self.folder / "shoal"
        homes = "\n".join(f"{self.name(host)}) SHOAL_HOME={host.home} ;;" for host in self.hosts.all)
        path.write_text(f'#!/bin/bash\ncase $SLURMD_NODENAME in\n{homes}\nesac\nexport SHOAL_HOME\nexec {binary()} "$@"\n')
        path.chmod(0o755)
        return path

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        """Runs a command on the first host."""
        return subprocess.run([*self._on(self.hosts.a), *words], env=self._env(), capture_output=True, text=True, timeout=LIMIT_S)

    def program(self, *words: str, **env: str) -> Running:
        """Starts a command on the first host."""
        line = [*self._on(self.hosts.a), *map(str, words)]
        return self.hosts.a._keep(Running(line, self._env(**env), self.folder))

    def srun(self, *words: str, nodes: int = 2, **env: str) -> Running:
        """Starts `shoal` on so many hosts, once on each."""
        return self.program("srun", f"--nodes={nodes}", "--ntasks-per-node=1", self.command, *words, **env)

    def jobs(self) -> list[str]:
        return self("squeue", "--noheader", "--format=%i").stdout.split()

    def job_states(self) -> dict[str, str]:
        """The states of all jobs, by their numbers."""
        return dict(line.split() for line in self("squeue", "--noheader", "--format=%i %T").stdout.splitlines())

    def end(self) -> None:
        for job in self.jobs():
            self("scancel", "--signal=KILL", job)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.jobs(), 30, "the end of all jobs")
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _env(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), "PYTHONUNBUFFERED": "1", **more}

    def _on(self, host: Host) -> tuple[str, ...]:
        return (*host.before, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name(host))

    def _start(self, name: str, *words: str) -> None:
        with open(self.folder / "daemons.log", "ab") as log:
            self._daemons[name] = subprocess.Popen(words, env=self._env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def slurm(count: int = 2, silence_s: int = 300):
    """Yields a Slurm of so many hosts, in a fixture. ``silence_s``: a host that is silent for so long is down."""
    if missing := [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]:
        pytest.skip(f"no {', '.join(missing)} on this machine (Debian: slurmctld slurmd slurm-client munge)")
    for hosts in several_hosts(count, "10.79.0"):
        folder = Path(tempfile.mkdtemp(prefix="shoal-slurm-"))
        made = Slurm(folder, hosts, silence_s)
        try:
            made.start()
            yield made
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)
