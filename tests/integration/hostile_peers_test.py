"""Hostile input at a cluster's port: garbage, half a hello, another token, another version. The cluster refuses it and runs on."""

import hashlib
import hmac
import json
import os
import pickle
import random
import socket
import struct
import threading
from pathlib import Path

import pytest
from launching.actors import Log
from launching.leftovers import wait_until

import shoal

MAGIC = b"SHL1"
CHALLENGE, ANSWER, VERDICT = 1, 2, 3
ACCEPTED, TOKEN_REFUSED, VERSION_REFUSED = 0, 1, 2
CLIENT = 2
HEADER = struct.Struct("<IIQHBBI")  # header of a frame: sizes of body and payload, id, method, kind, number of descriptors, zero
REQUEST, REPLY, ERROR, NOTICE, LINK = 1, 2, 3, 4, 5
STATUS, CALL = 13, 100
PART = 6  # a method of LINK: a part of a message whose bytes, method and kind the id announces


@pytest.fixture
def cluster(shoal_command):
    one = shoal_command.start()
    yield one
    assert shoal_command("stop", "--address", one.address).returncode == 0


def dial(cluster) -> socket.socket:
    host, _, port = cluster.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def read(connection, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return data
        data += piece
    return data


def is_dropped(connection) -> bool:
    """True if the other side ends the connection, possibly after sending data."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def token_of(cluster) -> bytes:
    return bytes.fromhex((cluster.session / "token").read_text().strip())


def greet(connection, token: bytes, newest=2, oldest=1, role=CLIENT) -> bytes:
    """Sends the client's part of the hello, made with `token`; returns the server's verdict."""
    challenge = read(connection, 64)
    assert challenge[:5] == MAGIC + bytes([CHALLENGE])
    answer = MAGIC + struct.pack("<BBHH6x", ANSWER, role, newest, oldest) + os.urandom(16)
    text = b"caller".ljust(16, b"\0") + challenge[:32] + answer
    connection.sendall(answer + hmac.new(token, text, hashlib.sha256).digest())
    return read(connection, 64)


def lives(shoal_command, cluster) -> None:
    assert shoal_command.json("status", "--address", cluster.address)["head_pid"] == cluster.pid("head")


def test_the_right_hello_is_accepted_and_a_request_answered(shoal_command, cluster):
    with dial(cluster) as connection:
        verdict = greet(connection, token_of(cluster))
        assert verdict[4:6] == bytes([VERDICT, ACCEPTED])
        connection.sendall(HEADER.pack(0, 0, 7, STATUS, REQUEST, 0, 0))
        body, _, id, _, kind, _, _ = HEADER.unpack(read(connection, HEADER.size))
        assert (id, kind) == (7, REPLY)
        assert len(read(connection, body)) == body > 0


@pytest.mark.parametrize(("newest", "oldest"), [(0, 0), (9, 8), (65535, 3), (3, 3)])
def test_another_wire_version_is_refused_with_our_version(shoal_command, cluster, newest, oldest):
    with dial(cluster) as connection:
        verdict = greet(connection, token_of(cluster), newest, oldest)
        assert verdict[4:6] == bytes([VERDICT, VERSION_REFUSED])
        assert struct.unpack("<HH", verdict[6:10]) == (2, 1)
        assert is_dropped(connection)
    lives(shoal_command, cluster)


@pytest.mark.parametrize(("newest", "oldest", "agreed"), [(3, 2, 2), (1, 1, 1)])
def test_a_client_with_a_common_version_is_accepted(shoal_command, cluster, newest, oldest, agreed):
    with dial(cluster) as connection:
        verdict = greet(connection, token_of(cluster), newest, oldest)
        assert verdict[5] == ACCEPTED
        assert struct.unpack("<H", verdict[8:10]) == (agreed,)


def test_another_token_is_refused_without_a_proof(shoal_command, cluster):
    with dial(cluster) as connection:
        verdict = greet(connection, os.urandom(32))
        assert verdict[4:6] == bytes([VERDICT, TOKEN_REFUSED])
        assert verdict[32:] == bytes(32)  # no proof: a stranger could try tokens against it offline
        assert is_dropped(connection)
    lives(shoal_command, cluster)


def test_a_replayed_hello_is_refused(shoal_command, cluster):
    token = token_of(cluster)
    with dial(cluster) as connection:
        challenge = read(connection, 64)
        answer = MAGIC + struct.pack("<BBHH6x", ANSWER, CLIENT, 1, 1) + os.urandom(16)
        text = b"caller".ljust(16, b"\0") + challenge[:32] + answer
        recorded = answer + hmac.new(token, text, hashlib.sha256).digest()
        connection.sendall(recorded)
        assert read(connection, 64)[5] == ACCEPTED
    with dial(cluster) as connection:
        read(connection, 64)
        connection.sendall(recorded)
        assert read(connection, 64)[5] == TOKEN_REFUSED


@pytest.mark.parametrize("role", [0, 4, 255])
def test_an_unknown_role_is_refused(shoal_command, cluster, role):
    with dial(cluster) as connection:
        assert greet(connection, token_of(cluster), role=role)[5] != ACCEPTED
        assert is_dropped(connection)
    lives(shoal_command, cluster)


GARBAGE = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(64, b" "), bytes(64), b"\xff" * 10_000, MAGIC * 16]


@pytest.mark.parametrize("bytes_sent", GARBAGE, ids=["http", "zeros", "ones", "magic"])
def test_garbage_closes_the_connection_at_once(shoal_command, cluster, bytes_sent):
    with dial(cluster) as connection:
        connection.sendall(bytes_sent)
        assert is_dropped(connection)
    lives(shoal_command, cluster)


def test_a_silent_client_is_dropped_after_a_timeout(shoal_command, cluster):
    with dial(cluster) as connection:
        connection.sendall(b"half a hello")
        assert is_dropped(connection)  # the server closes the connection before this end's own timeout


FRAMES = [
    HEADER.pack(1 << 31, 0, 1, STATUS, REQUEST, 0, 0),
    HEADER.pack(0, 1 << 31, 1, STATUS, REQUEST, 0, 0),
    HEADER.pack(7, 0, 1, STATUS, REQUEST, 0, 0) + bytes(7),
    HEADER.pack(0, 0, 1, STATUS, 0, 0, 0),
    HEADER.pack(0, 0, 1, STATUS, 99, 0, 0),
    HEADER.pack(0, 0, 1, STATUS, REQUEST, 0, 1),
    HEADER.pack(0, 0, 1, STATUS, REQUEST, 3, 0),
    HEADER.pack(0, 0, 1, STATUS, REQUEST, 255, 0),
    HEADER.pack(0, 9 << 20, 1, STATUS, REQUEST, 0, 0),
    HEADER.pack(0, 1 << 20, 16 << 30, PART, LINK, 0, 0),
    HEADER.pack(0, 1 << 20, 16 << 30 | STATUS << 40 | REQUEST << 56, PART, LINK, 0, 0),
]
FRAME_NAMES = [
    *("body", "payload", "word", "kind 0", "kind 99", "zero", "descriptors", "255 descriptors"),
    *("payload of its method", "part of no message", "part of its method"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=FRAME_NAMES)
def test_a_too_large_frame_closes_its_connection_only(shoal_command, cluster, frame):
    with dial(cluster) as other, dial(cluster) as connection:
        for c in (other, connection):
            assert greet(c, token_of(cluster))[5] == ACCEPTED
        connection.sendall(frame)
        assert is_dropped(connection)
        other.sendall(HEADER.pack(0, 0, 1, STATUS, REQUEST, 0, 0))
        assert HEADER.unpack(read(other, HEADER.size))[4] == REPLY
    lives(shoal_command, cluster)


def test_a_garbage_body_is_an_error_for_every_method(shoal_command, cluster):
    chance = random.Random(7)
    shutdown = 14
    with dial(cluster) as connection:
        assert greet(connection, token_of(cluster))[5] == ACCEPTED
        asked = 0
        for method in [m for m in range(120) if m != shutdown] + [65535]:
            for size in (0, 8, 64, 1024):
                body = bytes(chance.randrange(256) for _ in range(size)) if size != 64 else bytes(size)
                connection.sendall(HEADER.pack(size, 0, asked, method, REQUEST, 0, 0) + body)
                connection.sendall(HEADER.pack(size, 0, 0, method, NOTICE, 0, 0) + body)
                asked += 1
        answered = 0
        while answered < asked:
            size, payload, _, _, kind, _, _ = HEADER.unpack(read(connection, HEADER.size))
            read(connection, size + payload)
            answered += kind in (REPLY, ERROR)
    lives(shoal_command, cluster)
    assert shoal_command.rows("nodes")[0]["state"] == "ALIVE"


def call_of(method: bytes) -> bytes:
    """A call's body (actors/protocol/wire/control.capnp), with a method of any bytes: the schema's own types allow texts only."""
    text = method + b"\0"
    fields = struct.pack("<Q", 7) + struct.pack("<II", 1, len(text) << 3 | 2) + text + bytes(-len(text) % 8)
    segment = struct.pack("<IHH", 0, 1, 1) + fields
    return struct.pack("<II", 0, len(segment) // 8) + segment


def test_a_method_that_is_no_text_is_its_callers_error_only(shoal_command, cluster):
    shoal.init(cluster.address)
    try:
        actor = Log.remote()
        pid = shoal.get(actor.pid.remote(), timeout=60)
        (worker,) = (row for row in shoal_command.rows("workers", "--address", cluster.address) if row["pid"] == pid)
        (name,) = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if f"@shoal-{worker['id']}-" in line}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect("\0" + name[1:])
            assert greet(connection, token_of(cluster))[5] == ACCEPTED
            arguments = pickle.dumps(((), {}))
            for number, method in enumerate((b"\xff\xfe", b"add\0\xc3", b"\xed\xa0\x80"), 1):
                body = call_of(method)
                connection.sendall(HEADER.pack(len(body), len(arguments), number, CALL, REQUEST, 0, 0) + body + arguments)
            for number in (1, 2, 3):
                while True:
                    size, payload, id, _, kind, _, _ = HEADER.unpack(read(connection, HEADER.size))
                    read(connection, size + payload)
                    if kind in (REPLY, ERROR):
                        break
                assert id == number
        assert shoal.get(actor.pid.remote(), timeout=60) == pid
    finally:
        shoal.shutdown()


def test_many_idle_connections_block_no_client(shoal_command, cluster):
    crowd = [dial(cluster) for _ in range(200)]
    try:
        shoal.init(cluster.address)  # connects over the unix socket, as all clients on the head's host do
        actor = Log.remote()
        assert shoal.get(actor.echo.remote(1), timeout=60) == 1
        for _ in range(5):  # connects over TCP, beside the idle connections
            lives(shoal_command, cluster)
    finally:
        shoal.shutdown()
        for connection in crowd:
            connection.close()


def test_every_socket_of_a_cluster_needs_its_token(shoal_command, cluster):
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if cluster.session.name in line}
    assert len(names) == 2
    for name in names:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect("\0" + name[1:])
            assert greet(connection, os.urandom(32))[5] == TOKEN_REFUSED
            assert is_dropped(connection)
    lives(shoal_command, cluster)


# ---- impostors that listen at the address of a cluster


@pytest.fixture
def impostor(home, request):
    """Listens at the address of what looks like a running session, and answers a client with `request.param(token, connection)`."""
    listener = socket.create_server(("127.0.0.1", 0))
    session = home / "20240101-000000-0000000a"
    (session / "pids").mkdir(parents=True)
    session.chmod(0o700)
    token = os.urandom(32)
    (session / "token").write_text(token.hex())
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    (session / "info.json").write_text(json.dumps({"head": address, "head_local": "", "started_unix_ms": 1}))
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (session / "pids" / f"head.{os.getpid()}").write_text(started)
    heard = []

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    heard.append(request.param(token, connection))
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    yield address, heard
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def challenge_of(newest, oldest):
    return MAGIC + struct.pack("<BBHH6x", CHALLENGE, 0, newest, oldest) + os.urandom(16) + bytes(32)


def of_another_version(token, connection):
    connection.sendall(challenge_of(9, 8))
    return read(connection, 64)


def without_the_token(token, connection):
    connection.sendall(challenge_of(1, 1))
    answer = read(connection, 64)
    assert token not in answer
    connection.sendall(MAGIC + struct.pack("<BBHH6x", VERDICT, ACCEPTED, 1, 1) + bytes(16) + os.urandom(32))
    return read(connection, 1)


def that_speaks_http(token, connection):
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(64))
    return read(connection, 64)


def that_hangs_up(token, connection):
    return b""


@pytest.mark.parametrize(
    ("impostor", "code", "submit_code", "text"),
    [
        (of_another_version, 1, 122, "this side speaks 1 to 2, the other 8 to 9"),
        (without_the_token, 4, 123, "does not have the cluster's token"),
        (that_speaks_http, 1, 120, "does not speak Shoal's protocol"),
        (that_hangs_up, 5, 124, "closed the connection"),
    ],
    indirect=["impostor"],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_client_refuses_an_impostor(shoal_command, impostor, code, submit_code, text):
    address, heard = impostor
    done = shoal_command("status", "--address", address)
    assert done.returncode == code, done
    assert text in done.stderr
    done = shoal_command("submit", "--address", address, "--", "true")
    assert done.returncode == submit_code, done
    with pytest.raises(shoal.exceptions.ShoalError, match=text):
        shoal.init(address)
    wait_until(lambda: len(heard) == 3, 5, "the end of all three")
    assert set(heard) == {b""}  # the client sent nothing secret
