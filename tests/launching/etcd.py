"""Starts a real etcd on loopback with a data folder of its own; with ``tls``, it takes only clients that have a certificate."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from launching.ranks import free_port


def ask(url: str, files: list[str], path: str, **body) -> dict:
    handlers = [urllib.request.ProxyHandler({})]
    if files:
        context = ssl.create_default_context(cafile=files[0])
        context.load_cert_chain(*files[1:])
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(f"{url}/v3/{path}", json.dumps(body).encode(), 30) as reply:
        return json.load(reply)


def _certificates(folder: Path, address: str) -> None:
    """Creates a certificate authority (``ca``), and certificates of etcd and its client. Each certificate has its key in a file beside
    it."""
    (folder / "config").write_text("[req]\ndistinguished_name=name\n[name]\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext"]
    for name, words in (
        ("ca", ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]),
        ("etcd", [*signed, f"subjectAltName=IP:{address}", "-addext", "extendedKeyUsage=serverAuth,clientAuth"]),
        ("client", [*signed, "extendedKeyUsage=clientAuth"]),
    ):
        argv = ["openssl", "req", "-x509", "-config", "config", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        argv += ["-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", *words]
        subprocess.run(argv, cwd=folder, capture_output=True, check=True)


class Etcd:
    def __init__(self, address: str = "127.0.0.1", before: tuple[str, ...] = (), tls: bool = False):
        """``before``: the words before etcd's command line, to run etcd in another network namespace."""
        self.address, self.before = address, before
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-etcd."))
        self.files = [str(self.folder / name) for name in ("ca.pem", "client.pem", "client.key")] if tls else []
        if tls:
            _certificates(self.folder, address)
        for _ in range(5):  # tries again if another process took a port before etcd did
            self.port, self._peer_port = free_port(), free_port()
            if self.start():
                return
        raise AssertionError((self.folder / "log").read_text())

    def start(self) -> bool:
        client, peer = self.url, f"http://127.0.0.1:{self._peer_port}"
        words = [*self.before, "etcd", "--data-dir", str(self.folder / "data")]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        words += ["--heartbeat-interval", "20", "--election-timeout", "200"]
        if self.files:
            own = [str(self.folder / name) for name in ("etcd.pem", "etcd.key")]
            words += ["--client-cert-auth", "--trusted-ca-file", self.files[0], "--cert-file", own[0], "--key-file", own[1]]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while self.process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.02)
        return False

    def _answers(self) -> bool:
        if self.before:  # etcd can be reached from its own network namespace only
            here = str(Path(__file__).parent)
            asks = f"from launching.etcd import ask; ask({self.url!r}, {self.files!r}, 'kv/range', key='YQ==')"
            argv = [*self.before, sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r}); {asks}"]
            return subprocess.run(argv, capture_output=True).returncode == 0
        try:
            self.ask("kv/range", key="YQ==")
            return True
        except (OSError, urllib.error.URLError):
            return False

    def ask(self, path: str, **body) -> dict:
        return ask(self.url, self.files, path, **body)

    @property
    def url(self) -> str:
        return f"http{'s' if self.files else ''}://{self.address}:{self.port}"

    def store(self, name: str) -> str:
        return f"etcd{'s' if self.files else ''}://{self.address}:{self.port}/{name}"

    def store_files(self) -> list[str]:
        """The options by which a head finds the TLS files of this store."""
        names = ("--store-ca-file", "--store-cert-file", "--store-key-file")
        return [word for pair in zip(names, self.files, strict=False) for word in pair]

    def crash(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)
