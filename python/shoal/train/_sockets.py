"""Options of connections that belong to another library in this process.

By system calls: a socket object of Python for such a descriptor would change its mode, for all who use it, where the program has called
``socket.setdefaulttimeout``.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator

_libc = ctypes.CDLL(None)
_ADDRESS_BYTES = 128  # the largest address of any family


def open_fds() -> list[int]:
    """Returns the numbers of this process's descriptors. Some may be closed by now."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def peer_of(fd: int) -> tuple[str, int] | None:
    """Returns the address and the port to which a descriptor is connected over IP; None if it is not."""
    address, size = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint32(_ADDRESS_BYTES)
    if _libc.getpeername(fd, address, ctypes.byref(size)) != 0:
        return None
    family, port = int.from_bytes(address.raw[:2], sys.byteorder), int.from_bytes(address.raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, address.raw[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, address.raw[8:24]).removeprefix("::ffff:"), port
    return None


def addresses_of(host: str, port: int) -> Iterator[str]:
    """Yields the addresses of a host, as ``peer_of`` returns them. Raises OSError for an unknown one."""
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        yield address[0].partition("%")[0].removeprefix("::ffff:")


def set_option(fd: int, level: int, option: int, value: int) -> None:
    """Sets an option, unless the descriptor is closed by now."""
    number = ctypes.c_int(value)
    _libc.setsockopt(fd, level, option, ctypes.byref(number), ctypes.sizeof(number))
