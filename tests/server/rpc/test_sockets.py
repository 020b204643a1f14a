"""Addresses: a dead process's socket is replaced, a living one's is not, nobody else gets in."""

import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fourstep.v1 import control_pb2

from server.config import ListenerConfig
from server.rpc.listener import problems
from server.rpc.sockets import AddressError, check_free
from tests.server.rpc.working import running
from tests.server.tiny_checkpoint import write_checkpoint

DIES = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"


def test_a_socket_is_its_owners_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "socket:0"  # which is its name, and no port to be found
    subprocess.run([sys.executable, "-c", DIES, str(path)], check=True)
    assert stat.S_ISSOCK(path.stat().st_mode)
    listeners = (ListenerConfig(address=f"unix:{path}"),)
    with running(write_checkpoint(tmp_path / "tiny"), listeners=listeners) as worker:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert worker.control.GetModel(control_pb2.GetModelRequest()).name == "tiny"
        with pytest.raises(AddressError, match="another process listens there"):
            check_free(f"unix:{path}")
        assert list(problems(listeners)) == [
            ("listeners[0].address", f"unix:{path}: another process listens there")
        ]
        assert worker.control.GetModel(control_pb2.GetModelRequest()).name == "tiny"
    assert not path.exists()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(AddressError, match="is a file, and no socket"):
        check_free(f"unix:{path}")
    assert path.read_text() == "mine"
    with pytest.raises(AddressError, match=r"there is no folder .*nowhere"):
        check_free(f"unix:{tmp_path}/nowhere/socket")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the system has no /proc")
def test_a_folder_that_takes_no_socket_is_told_before_a_model_is_loaded() -> None:
    listeners = [ListenerConfig(address="unix:/proc/socket")]
    [(key, told)] = problems(listeners)
    assert key == "listeners[0].address"
    assert told.startswith("unix:/proc/socket: ")


def test_what_was_looked_at_is_not_there_afterwards(tmp_path: Path) -> None:
    check_free(f"unix:{tmp_path}/socket")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AddressError, match=rf"^unix:{tmp_path}/a+: .*too long"):
        check_free(f"unix:{tmp_path}/{'a' * 120}")


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert list(problems([ListenerConfig(address=address)])) == [
            ("listeners[0].address", f"{address}: Address already in use")
        ]
    check_free(address)
    check_free("127.0.0.1:0")
    with pytest.raises(AddressError):
        check_free("203.0.113.7:50051")  # an address of documents, nobody's
