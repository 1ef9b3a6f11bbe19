"""An sshd on each of several hosts, and an ssh that knows them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launching.commands import INIT, LIMIT_S, Running
from launching.hosts import Host, Hosts, several_hosts
from launching.leftovers import wait_until

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # a user's PATH may lack these folders
_DAEMON, _CLIENT = (shutil.which(name, path=_PATH) for name in ("sshd", "ssh"))

# No PAM: its modules need what a container lacks.
_CONFIGURATION = """
ListenAddress {address}
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv {variables}
"""


class Sshd:
    """``folder`` has configurations, keys and logs. ``variables``: those of every command on the hosts."""

    def __init__(self, folder: Path, hosts: Hosts, **variables: str):
        self.folder, self.hosts = folder, hosts
        self._variables = variables
        self._daemons: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")], check=True)
        public = (self.folder / "key.pub").read_text()
        (self.folder / "known").write_text("".join(f"{host.address} {public}" for host in self.hosts.all))
        client = self.folder / "programs" / "ssh"
        client.parent.mkdir()
        options = f"-F none -i {self.folder}/key -o UserKnownHostsFile={self.folder}/known"
        client.write_text(f'#!/bin/sh\nexec {_CLIENT} {options} "$@"\n')
        client.chmod(0o755)
        for host in self.hosts.all:
            self._start_host(host)

    def _start_host(self, host: Host) -> None:
        kept = ("PATH", "PYTHON", "SHOAL_", "LD_LIBRARY_PATH")
        variables = {name: value for name, value in host.env(**self._variables).items() if name.startswith(kept)}
        text = " ".join(f'"{name}={value}"' for name, value in {**variables, **self._variables}.items())
        configuration = self.folder / f"{host.name}.conf"
        configuration.write_text(_CONFIGURATION.format(address=host.address, folder=self.folder, variables=text))
        log = self.folder / f"{host.name}.log"
        with open(log, "wb") as file:
            line = [*host.before, sys.executable, "-c", INIT, _DAEMON, "-D", "-e", "-f", str(configuration)]
            self._daemons[host.name] = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        wait_until(lambda: "listening" in log.read_text() or self._daemons[host.name].poll() is not None, LIMIT_S, "an sshd")
        assert self._daemons[host.name].poll() is None, log.read_text()

    def program(self, *words: str, **env: str) -> Running:
        """Starts a command on the first host. ``env``: the command's variables, which the hosts do not get from their sshd."""
        env = self.hosts.a.env(PATH=f"{self.folder}/programs:{_PATH}", **env)
        return self.hosts.a._keep(Running([*self.hosts.a.before, *map(str, words)], env, self.folder))

    def lose(self, host: Host) -> None:
        """The host loses its network and all of its processes at once."""
        self.hosts.lose(host)

    def end(self) -> None:
        for daemon in self._daemons.values():
            daemon.terminate()
            daemon.wait()


def sshd(count: int = 2, **variables: str):
    """Yields hosts with an sshd each, in a fixture."""
    if not (_DAEMON and _CLIENT):
        pytest.skip("no sshd and ssh on this machine (Debian: openssh-server)")
    for hosts in several_hosts(count, "10.81.0"):
        folder = Path(tempfile.mkdtemp(prefix="shoal-sshd-"))
        with contextlib.suppress(FileExistsError):
            os.mkdir("/run/sshd", 0o755)  # sshd's own folder, which its service makes
        made = Sshd(folder, hosts, **variables)
        try:
            made.start()
            yield made
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)
