"""A real etcd on loopback, with a data folder of its own."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(address: str, port: int, path: str, **body) -> dict:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}:{port}/v3/{path}", json.dumps(body).encode(), 30) as reply:
        return json.load(reply)


class Etcd:
    def __init__(self, address: str = "127.0.0.1", before: tuple[str, ...] = ()):
        """``before``: what its command begins with, to run it elsewhere."""
        self.address, self.before = address, before
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-etcd."))
        for _ in range(5):  # somebody may take a port in between
            self.port, self._peer_port = _free_port(), _free_port()
            if self.start():
                return
        raise AssertionError((self.folder / "log").read_text())

    def start(self) -> bool:
        client, peer = f"http://{self.address}:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        words = [*self.before, "etcd", "--data-dir", str(self.folder / "data")]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        words += ["--heartbeat-interval", "20", "--election-timeout", "200"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while self.process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.02)
        return False

    def _answers(self) -> bool:
        if self.before:  # it is to be reached from there only
            here = str(Path(__file__).parent)
            asks = f"from etcd import ask; ask({self.address!r}, {self.port}, 'kv/range', key='YQ==')"
            argv = [*self.before, sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r}); {asks}"]
            return subprocess.run(argv, capture_output=True).returncode == 0
        try:
            self.ask("kv/range", key="YQ==")
            return True
        except (OSError, urllib.error.URLError):
            return False

    def ask(self, path: str, **body) -> dict:
        return ask(self.address, self.port, path, **body)

    def store(self, name: str) -> str:
        return f"etcd://{self.address}:{self.port}/{name}"

    def crash(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
