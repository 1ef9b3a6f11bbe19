"""Slurm on two hosts: a slurmctld on the first one, and a slurmd on each, with a munged for both."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from launching.commands import LIMIT_S, Running
from launching.hosts import Host, Hosts, several_hosts
from launching.leftovers import wait_until

_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # a user's PATH may lack these folders

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={a}({a_address})
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
NodeName={a} NodeAddr={a_address} CPUs=2
NodeName={b} NodeAddr={b_address} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """``folder`` has configuration, keys and logs. Hosts have the names shoal-a and shoal-b."""

    def __init__(self, folder: Path, hosts: Hosts):
        self.folder, self.hosts = folder, hosts
        self._daemons: list[subprocess.Popen] = []
        (folder / "state").mkdir()
        for host in hosts.all:
            (folder / self.name(host)).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        a, b = hosts.a, hosts.b
        names = {"a": self.name(a), "b": self.name(b), "a_address": a.address, "b_address": b.address, "folder": folder}
        (folder / "slurm.conf").write_text(_CONFIGURATION.format(**names))

    @staticmethod
    def name(host: Host) -> str:
        return f"shoal-{host.name}"

    def start(self) -> None:
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        self._start("munged", "--foreground", "--force", *(f"--{option}={self.folder}/munge.{end}" for option, end in files.items()))
        wait_until((self.folder / "munge.socket").exists, LIMIT_S, "the socket of munged")
        self._start(*self._on(self.hosts.a), "slurmctld", "-D")
        for host in self.hosts.all:
            self._start(*self._on(host), "slurmd", "-D", "-N", self.name(host))
        wait_until(lambda: self("sinfo", "--noheader", "--states=idle", "--format=%D").stdout.strip() == "2", LIMIT_S, "two idle hosts")

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        """Runs a command on the first host."""
        return subprocess.run([*self._on(self.hosts.a), *words], env=self._env(), capture_output=True, text=True, timeout=LIMIT_S)

    def srun(self, *words: str, **env: str) -> Running:
        """Starts a command on both hosts, once on each, with a SHOAL_HOME of its own."""
        homes = " ".join(str(host.home) for host in self.hosts.all)
        each = f'set -- {homes} "$@"; [ $SLURM_NODEID = 0 ] && SHOAL_HOME=$1 || SHOAL_HOME=$2; shift 2; export SHOAL_HOME; exec "$@"'
        line = [*self._on(self.hosts.a), "srun", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", each, "sh", *map(str, words)]
        return self.hosts.a._keep(Running(line, self._env(**env), self.folder))

    def jobs(self) -> list[str]:
        return self("squeue", "--noheader", "--format=%i").stdout.split()

    def end(self) -> None:
        for job in self.jobs():
            self("scancel", "--signal=KILL", job)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.jobs(), 30, "the end of all jobs")
        for daemon in reversed(self._daemons):
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

    def _start(self, *words: str) -> None:
        with open(self.folder / "daemons.log", "ab") as log:
            self._daemons.append(subprocess.Popen(words, env=self._env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log))


def slurm():
    """Yields a Slurm, in a fixture."""
    if missing := [program for program in _PROGRAMS if shutil.which(program, path=_PATH) is None]:
        pytest.skip(f"no {', '.join(missing)} on this machine (Debian: slurmctld slurmd slurm-client munge)")
    for hosts in several_hosts(2, "10.79.0"):
        folder = Path(tempfile.mkdtemp(prefix="shoal-slurm-"))
        made = Slurm(folder, hosts)
        try:
            made.start()
            yield made
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)
