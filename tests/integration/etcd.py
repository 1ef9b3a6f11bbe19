"""A real etcd on loopback, with a data folder of its own."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Etcd:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-etcd."))
        for _ in range(5):  # somebody may take a port in between
            self.port, self._peer_port = _free_port(), _free_port()
            if self.start():
                return
        raise AssertionError((self.folder / "log").read_text())

    def start(self) -> bool:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        words = ["etcd", "--data-dir", str(self.folder / "data"), "--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        words += ["--heartbeat-interval", "20", "--election-timeout", "200"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while self.process.poll() is None:
            try:
                self.ask("kv/range", key="YQ==")
                return True
            except (OSError, urllib.error.URLError):
                time.sleep(0.02)
        return False

    def ask(self, path: str, **body) -> dict:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/v3/{path}", json.dumps(body).encode(), 30) as reply:
            return json.load(reply)

    def store(self, name: str) -> str:
        return f"etcd://127.0.0.1:{self.port}/{name}"

    def crash(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
