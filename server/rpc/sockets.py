"""Addresses taken: ports and socket files, before and when grpc binds them.

Knows sockets. Keeps true: nobody's address is taken from a process that still listens there; a
socket's file is its owner's alone from the moment it exists, and one that a dead process left is
replaced.
"""

import errno
import os
import socket
import stat
from pathlib import Path

import grpc

from server.config import host_of

_OWNER_ONLY = 0o177  # what a umask takes away


class AddressError(ValueError):
    """An address that cannot be listened on."""


def check_free(address: str) -> None:
    """Raises AddressError where somebody listens there, or nobody can."""
    if address.startswith("unix:"):
        _check_file(Path(address.removeprefix("unix:")))
    elif not address.endswith(":0"):
        _check_port(host_of(address).strip("[]"), int(address.rpartition(":")[2]), address)


def bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """The port. Raises AddressError."""
    check_free(address)
    mask = os.umask(_OWNER_ONLY) if address.startswith("unix:") else None
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AddressError(f"{address}: cannot be listened on") from error
    finally:
        if mask is not None:
            os.umask(mask)


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _check_folder(path)
        return
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"unix:{path}: is a file, and no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()  # whoever made it is gone
            return
    raise AddressError(f"unix:{path}: another process listens there")


def _check_folder(path: Path) -> None:
    """Whether a socket can be there, which nothing tells as well as one."""
    if not path.parent.is_dir():
        raise AddressError(f"unix:{path}: there is no folder {path.parent}")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(path))
        except OSError as error:
            raise AddressError(f"unix:{path}: {error.strerror or error}") from error
        path.unlink()


def _check_port(host: str, port: int, address: str) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressError(f"{address}: {error.strerror}") from error
    failures = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except OSError as error:
            failures.append(error)
    # A name can have addresses that this machine has not; one that is taken is another matter.
    taken = [error for error in failures if error.errno != errno.EADDRNOTAVAIL]
    if taken or len(failures) == len(found):
        raise AddressError(f"{address}: {(taken or failures)[0].strerror}") from failures[0]
