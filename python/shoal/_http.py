"""The HTTP interface of a cluster: where it is, and requests with the cluster's token."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import urllib.parse
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._runtime import read_token, state
from shoal.exceptions import InvalidArgument, Unavailable

__all__ = ["Http"]

_TIMEOUT_S = 30  # for the cluster to say something
_HERE = ("127.0.0.1", "localhost", "::1")


class _Response(http.client.HTTPResponse):
    """Its ``close`` ends a read that another thread is in: closing the file alone would wait for it."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any):
        super().__init__(sock, *args, **more)
        self._socket = sock

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other side closed first
            self._socket.shutdown(socket.SHUT_RDWR)
        super().close()


class Http:
    """``address``: ``"http://HOST:PORT"``, what ``shoal.init`` takes (``"auto"``, ``"HOST:PORT"`` of a head), or None for this process's
    cluster, else ``$SHOAL_ADDRESS``, else the one that runs. The token lies in the cluster's session folder; elsewhere it comes in
    ``headers`` or as the file that ``$SHOAL_TOKEN_FILE`` names. Raises Unavailable when there is none at that address."""

    def __init__(self, address: str | None = None, headers: dict[str, str] | None = None):
        url, folder = _place(address)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise InvalidArgument(f"{url!r} is not http://HOST:PORT")
        self.address, self.netloc = f"http://{parts.netloc}", parts.netloc
        self._headers = dict(headers or {})
        if not any(name.lower() == "authorization" for name in self._headers):
            self._headers["Authorization"] = f"Bearer {_token(self.address, folder)}"

    def open(self, method: str, path: str, body: Any = None, *, patient: bool = False) -> http.client.HTTPResponse:
        """The response, whatever its status; to be read and closed by the caller. ``patient``: its end may be far away."""
        connection = http.client.HTTPConnection(self.netloc, timeout=_TIMEOUT_S)
        connection.response_class = _Response
        data = None if body is None else json.dumps(body)
        try:
            connection.connect()
            opened = connection.sock
            connection.request(method, path, data, {**self._headers, "Content-Type": "application/json"})
            response = connection.getresponse()
            if patient:
                opened.settimeout(None)
            return response
        except OSError as error:
            connection.close()
            raise Unavailable(f"no answer from {self.address}: {error}", hint="is the cluster running? see shoal status") from error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers, from JSON. Raises RuntimeError with the status, as Ray does."""
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
    """(URL, session folder or "")."""
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
            hint="shoal start --head has one; a cluster that shoal.init() starts has with include_dashboard=True",
        )
    return url, folder


def _info(folder: str | os.PathLike) -> dict[str, Any]:
    try:
        return json.loads(Path(folder, "info.json").read_text())
    except (OSError, ValueError):
        return {}


def _token(address: str, folder: str) -> str:
    if named := os.environ.get("SHOAL_TOKEN_FILE"):
        return Path(named).read_text().strip()
    if not folder:
        root = Path(os.environ.get("SHOAL_HOME") or f"/tmp/shoal-{os.getuid()}")
        to = urllib.parse.urlsplit(address)
        here = [i.parent for i in root.glob("*/info.json") if urllib.parse.urlsplit(_info(i.parent).get("http", "")).port == to.port]
        if not here or to.hostname not in _HERE:  # clusters of this host listen nowhere else: another host is not told their token
            raise InvalidArgument(
                f"the token of the cluster at {address} is not known here",
                hint='name its file in $SHOAL_TOKEN_FILE, or give headers={"Authorization": "Bearer TOKEN"}',
            )
        folder = str(max(here, key=lambda f: f.stat().st_mtime))
    return read_token(folder).strip()
