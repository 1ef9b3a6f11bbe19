"""Logs of a cluster: its files, on this host and on others, and the lines of an actor or a task."""

from __future__ import annotations

import codecs
import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal import _native
from shoal._core.process import state
from shoal.exceptions import Unimplemented
from shoal.util._state_tables import TIMEOUT_S, address_of, answer_of, get_actor, get_job, get_node, get_worker, list_nodes, list_workers


def _logs_folder(address: str | None) -> Path:
    if address in (None, "auto") and state.session is not None:
        return Path(state.session.folder, "logs")
    folder, _ = _native.find_session(address or os.environ.get("SHOAL_ADDRESS") or "auto", os.environ.get("SHOAL_HOME", ""))
    return Path(folder, "logs")


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: float = TIMEOUT_S,
) -> dict[str, list[str]]:
    """Returns the names of the session's log files by writer: "head", "node", "local", "worker_out", "worker_err".

    All nodes of a host share a folder; ``node_id`` or ``node_ip`` restricts workers' files to that node. Files of another host are fetched
    from a living node there (Unavailable without one). ValueError for an unknown node."""
    glob_filter = "*" if glob_filter is None else glob_filter
    folder = _logs_folder(address)
    nodes, elsewhere = _nodes_named(folder, address, node_id, node_ip, timeout)
    theirs = None if nodes is None else {r.worker_id for r in list_workers(address, limit=1 << 30, timeout=timeout) if r.node_id in nodes}
    out: dict[str, list[str]] = {}
    files = map(Path, _files_elsewhere(elsewhere, glob_filter, 0, address, timeout)["files"]) if elsewhere else sorted(folder.iterdir())
    for file in files:
        if not fnmatch.fnmatch(file.name, glob_filter):
            continue
        kind = file.name.partition("-")[0].partition(".")[0]
        if kind == "worker":
            if theirs is not None and not any(worker in file.name for worker in theirs):
                continue
            kind = "worker_err" if file.suffix == ".err" else "worker_out"
        out.setdefault(kind, []).append(file.name)
    return out


def _nodes_named(
    folder: Path, address: str | None, node_id: str | None, node_ip: str | None, timeout: float
) -> tuple[set[str] | None, str]:
    """Returns (ids of the named nodes, or None if none is named; one of these ids if they are on another host, else "")."""
    if node_id is None and node_ip is None:
        return None, ""
    rows = list_nodes(address, limit=1 << 30, timeout=timeout)
    rows = [r for r in rows if node_id in (None, r.node_id) and node_ip in (None, r.node_ip)]
    if not rows:
        raise ValueError(f"there is no node {node_id or node_ip}")
    own_ip = _this_host(folder) or rows[0].node_ip
    return {r.node_id for r in rows}, "" if any(r.node_ip == own_ip for r in rows) else rows[0].node_id


def _this_host(folder: Path) -> str:
    """This host's address in a cluster over several hosts, "" in a cluster on one host."""
    host = folder.parent / "tls" / "host"
    return host.read_text().strip() if host.exists() else ""


def _files_elsewhere(node: str, pattern: str, tail: int, address: str | None, timeout: float) -> dict[str, Any]:
    return answer_of("logs", "cluster", pattern, "--node-id", node, "--tail", str(tail), *address_of(address), timeout=timeout)


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    timeout: float = TIMEOUT_S,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str | None = "replace",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Iterator[str]:
    """Yields a log in pieces (of bytes with ``encoding=None``). The log is a file (``list_logs``), the output of an actor or a process, a
    submitted job's, or a task's. ``suffix``: "out" for stdout, "err" for stderr.

    A task's output is that of its last attempt. Attempts in one process are not separated, whatever ``attempt_number``. Unimplemented for
    a process that runs several tasks at once, NotFound for an unknown task.

    ``tail``: the number of last lines (-1: all that are kept). ``follow``: also yields later output, polled every ``_interval`` seconds,
    until the process ends. ``filter_ansi_code``: removes colours. ``node_id`` or ``node_ip`` selects the node of a process. Logs on another
    host come from a living node there (else Unavailable), at most the last 16 MiB, and cannot be followed (Unimplemented)."""
    del attempt_number

    def shown(pieces: Iterator[bytes]) -> Iterator[str]:
        return _shown(pieces, encoding, errors or "replace", filter_ansi_code)

    if suffix not in ("out", "err"):
        raise ValueError(f'suffix is "out" or "err", not {suffix!r}')
    if task_id is not None:
        if follow:
            raise Unimplemented("the log of one task cannot be followed", hint="pass pid=get_task(id).worker_pid to follow its process")
        return shown(_printed_by(task_id, address, tail, timeout, suffix))
    worker, folder = None, _logs_folder(address)
    nodes, elsewhere = _nodes_named(folder, address, node_id, node_ip, timeout)
    if filename is None:
        worker = _worker_of(address, actor_id, pid, submission_id, timeout, nodes)
        elsewhere = elsewhere or _node_elsewhere(folder, worker, address, timeout)
        filename = f"worker-{worker}.{suffix}"
    path = folder / filename
    if path.parent != folder or path.name in ("", ".", "..") or path.is_symlink():
        raise ValueError(f"{filename!r} is no file of the session's logs")
    if elsewhere and follow:
        hint = f"`shoal logs worker --id {worker} -f`" if worker else "follow it on that host"
        raise Unimplemented("a file of another host cannot be followed", hint=hint)
    if elsewhere:
        return shown(iter([_files_elsewhere(elsewhere, filename, tail, address, timeout).get("text", "").encode()]))

    def over() -> bool:
        row = None if worker is None else get_worker(worker, address, timeout)
        return row is None or not row.is_alive

    return shown(_pieces(path, tail, follow, over, 0.1 if _interval is None else _interval))


_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


def _shown(pieces: Iterator[bytes], encoding: str | None, errors: str, plain: bool) -> Iterator[Any]:
    decode = codecs.getincrementaldecoder(encoding)(errors).decode if encoding else bytes
    for piece in pieces:
        yield decode(_COLOURS.sub(b"", piece) if plain else piece)
    if encoding and (rest := decode(b"", True)):  # an incomplete last character
        yield rest


def _node_elsewhere(folder: Path, worker: str, address: str | None, timeout: float) -> str:
    """Returns the worker's node if it is on another host, else ""."""
    own_ip = _this_host(folder)
    row = get_worker(worker, address, timeout) if own_ip else None
    node = get_node(row.node_id, address, timeout) if row is not None else None
    return node.node_id if node is not None and node.node_ip != own_ip else ""


def _printed_by(task: str, address: str | None, tail: int, timeout: float, suffix: str) -> Iterator[bytes]:
    said = answer_of("logs", "task", "--id", task, "--tail", str(tail), *address_of(address), timeout=timeout)
    return iter([log["text"].encode() for log in said["logs"] if log["stream"] == f"std{suffix}"])


def _worker_of(
    address: str | None, actor_id: str | None, pid: int | None, submission_id: str | None, timeout: float, nodes: set[str] | None
) -> str:
    if actor_id is not None:
        row = get_actor(actor_id, address, timeout)
        if row is not None and int(row.worker_id, 16):
            return row.worker_id
        raise ValueError(f"the cluster has no process of actor {actor_id}")
    rows = list_workers(address, limit=1 << 30, timeout=timeout)
    if submission_id is not None:
        job = get_job(submission_id, address, timeout)
        rows = [r for r in rows if job is not None and r.job_id == job.job_id and r.worker_type == "DRIVER"]
    elif pid is not None:
        rows = [r for r in rows if r.pid == pid and (nodes is None or r.node_id in nodes)]
    else:
        raise ValueError("name a log by filename, actor_id, pid or submission_id")
    if not rows:
        raise ValueError(f"the cluster has no process of {submission_id or pid}")
    return rows[0].worker_id


def _pieces(path: Path, tail: int, follow: bool, over: Callable[[], bool], interval_s: float) -> Iterator[bytes]:
    if not path.exists() and not follow:
        return
    text = path.read_bytes() if path.exists() else b""
    at = len(text)
    lines = text.splitlines(keepends=True)
    yield b"".join(lines if tail < 0 else lines[len(lines) - tail :] if tail else [])
    while follow:
        last = over()
        size = path.stat().st_size if path.exists() else 0
        if size < at:
            at = 0  # the file was full and has been started anew
        if size > at:
            with path.open("rb") as file:
                file.seek(at)
                piece = file.read()
            at += len(piece)
            yield piece
        elif last:
            return
        else:
            time.sleep(interval_s)
