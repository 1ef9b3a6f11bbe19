"""One host's end of plain TCP streams: raw_tcp.py [--to ADDRESS] [--receive] --seconds S. Prints the received bytes per second as JSON."""

import argparse
import contextlib
import json
import socket
import threading
import time

PORT, PIECE = 29612, 1 << 20

parser = argparse.ArgumentParser()
parser.add_argument("--to", default="", help="sends to this host for the given seconds")
parser.add_argument("--receive", action="store_true", help="receives from one host until it ends")
parser.add_argument("--seconds", type=float, default=1.0)
options = parser.parse_args()


def connect() -> socket.socket:
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(ConnectionError):
            return socket.create_connection((options.to, PORT))
        if time.monotonic() > until:
            raise TimeoutError(f"no receiver at {options.to}")
        time.sleep(0.01)


def send() -> None:
    with connect() as stream:
        data, end = memoryview(bytearray(PIECE)), time.monotonic() + options.seconds
        while time.monotonic() < end:
            stream.sendall(data)


def receive() -> None:
    with socket.create_server(("", PORT)) as server:
        stream, _ = server.accept()
    with stream:
        data, total, begin = memoryview(bytearray(PIECE)), 0, time.monotonic()
        while count := stream.recv_into(data):
            total += count
        print(json.dumps({"bytes_per_second": total / (time.monotonic() - begin)}), flush=True)


threads = [threading.Thread(target=f) for f, wanted in ((receive, options.receive), (send, options.to)) if wanted]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
