"""The HTTP interface of a cluster: its address, and requests with a token derived from the cluster's token.

Requests are not encrypted, and any user may listen at a free port. The token is therefore sent only to this host, and only to a listener
of a trusted user.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import ipaddress
import json
import os
import socket
import urllib.parse
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._core.process import state
from shoal.exceptions import InvalidArgument, Unavailable

__all__ = ["Http"]

_TIMEOUT_S = 30  # for an answer of the cluster
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Response(http.client.HTTPResponse):
    """A response whose ``close`` ends a read in another thread; closing the file alone would wait for that read."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any):
        super().__init__(sock, *args, **more)
        self._socket = sock

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other side may have closed the connection
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()


class Http:
    """Requests to one cluster.

    ``address``: ``"http://HOST:PORT"``, or an address for ``shoal.init`` (``"auto"``, ``"HOST:PORT"`` of a head). The default is this
    process's cluster, else that of ``$SHOAL_ADDRESS``, else the one that runs on this host. The cluster's token is read from its session
    folder, or from the file in ``$SHOAL_TOKEN_FILE``. The derived token is not sent to other hosts, nor to a listener of another user
    (InvalidArgument). ``headers`` with their own ``Authorization`` are sent to any address. Raises Unavailable when no interface answers at
    that address.
    """

    def __init__(self, address: str | None = None, headers: dict[str, str] | None = None):
        url, folder = _place(address)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidArgument(f"{url!r} is not http://HOST:PORT")
        self.address, self.netloc = f"http://{parts.netloc}", parts.netloc
        self._headers = dict(headers or {})
        self._trusted: set[int] | None = None  # users whose listeners may get the token; None: any
        if not any(name.lower() == "authorization" for name in self._headers):
            token, owner = _token(self.address, folder)
            self._headers["Authorization"] = f"Bearer {token}"
            self._trusted = {0, os.getuid(), owner}

    def open(self, method: str, path: str, body: Any = None, *, patient: bool = False) -> http.client.HTTPResponse:
        """Returns the response with any status; the caller reads and closes it. ``patient``: reads have no timeout."""
        connection = http.client.HTTPConnection(self.netloc, timeout=_TIMEOUT_S)
        connection.response_class = _Response
        data = None if body is None else json.dumps(body)
        try:
            connection.connect()
            opened = connection.sock
            if self._trusted is not None:
                _refuse_strangers(opened, self._trusted)
            connection.request(method, path, data, {**self._headers, "Content-Type": "application/json"})
            response = connection.getresponse()
            if patient:
                opened.settimeout(None)
            return response
        except InvalidArgument:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise Unavailable(f"no answer from {self.address}: {error}", hint="is the cluster running? see shoal status") from error

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the answer, decoded from JSON. Like Ray, it raises RuntimeError with the status."""
        with self.open(method, path, body) as response:
            text = response.read().decode()
            if response.status != 200:
                raise refusal(response.status, text)
        return json.loads(text)


def refusal(status: int, text: str) -> RuntimeError:
    try:
        said = json.loads(text)
        text = said["message"] + (f" (hint: {said['hint']})" if said.get("hint") else "")
    except (ValueError, KeyError, TypeError):
        pass
    return RuntimeError(f"Request failed with status code {status}: {text}.")


def _place(address: str | None) -> tuple[str, str]:
    """Returns (URL, session folder or "")."""
    if address is not None and "://" in address:
        return address, ""
    home = os.environ.get("SHOAL_HOME", "")
    if address is None and state.session is not None:
        folder = state.session.folder
    else:
        folder, _ = _native.find_session(address or os.environ.get("SHOAL_ADDRESS") or "auto", home)
    url = _info(folder).get("http", "")
    if not url:
        raise Unavailable(
            "this cluster has no HTTP interface",
            hint="`shoal start --head` starts one; shoal.init() does with include_dashboard=True",
        )
    return url, folder


def _info(folder: str | os.PathLike) -> dict[str, Any]:
    try:
        return json.loads(Path(folder, "info.json").read_text())
    except (OSError, ValueError):
        return {}


def _token(address: str, folder: str) -> tuple[str, int]:
    """Returns (the token of HTTP requests, the uid of the token file's owner)."""
    to = urllib.parse.urlsplit(address)
    if to.hostname not in _LOOPBACK:
        raise InvalidArgument(
            f"the cluster's token is not sent to {address}: it is another host, and HTTP is not encrypted",
            reason="TokenRefused",
            hint=f"`ssh -L {to.port or 80}:127.0.0.1:{to.port or 80} {to.hostname}` forwards its port to this host; or, in a trusted "
            'network, give headers={"Authorization": "Bearer TOKEN"} with the token in its session\'s http-token',
        )
    if named := os.environ.get("SHOAL_TOKEN_FILE"):
        file = Path(named)
    else:
        if not folder:
            root = Path(os.environ.get("SHOAL_HOME") or f"/tmp/shoal-{os.getuid()}")
            folders = [i.parent for i in root.glob("*/info.json") if urllib.parse.urlsplit(_info(i.parent).get("http", "")).port == to.port]
            if not folders:
                raise InvalidArgument(
                    f"this host has no token of the cluster at {address}",
                    hint='name its file in $SHOAL_TOKEN_FILE, or give headers={"Authorization": "Bearer TOKEN"}',
                )
            folder = str(max(folders, key=lambda f: f.stat().st_mtime))
        file = Path(folder, "token")
    try:
        token, owner = bytes.fromhex(file.read_text().strip()), file.stat().st_uid
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the cluster's token cannot be read: {error}", reason="TokenRefused") from error
    return hmac.digest(token, b"shoal http", "sha256").hex(), owner  # same as in scheduler/web/guard.cc


def _refuse_strangers(connected: socket.socket, trusted: set[int]) -> None:
    """Raises InvalidArgument if a process of another user may listen at the other end."""
    address, port = connected.getpeername()[:2]
    users = _listeners(address, port) if ipaddress.ip_address(address).is_loopback else set()
    if users and users <= trusted:
        return
    who = f"user {min(users - trusted)}" if users else "an unknown user"
    raise InvalidArgument(
        f"the cluster's token is not sent to {address}:{port}: the process that listens there belongs to {who}",
        reason="TokenRefused",
        hint="is the cluster running? see shoal status",
    )


def _listeners(address: str, port: int) -> set[int]:
    """The users who own sockets that listen at this address and port."""
    packed = ipaddress.ip_address(address).packed
    mapped = packed if len(packed) == 16 else bytes(10) + b"\xff\xff" + packed
    names = ["".join(f"{w:08X}" for w in memoryview(at).cast("I")) for at in (packed, mapped, bytes(4), bytes(16))]
    places = {f"{name}:{port:04X}" for name in names}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1] in places and fields[3] == "0A":  # state LISTEN
                    found.add(int(fields[7]))
    return found
