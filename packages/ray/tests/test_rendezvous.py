from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from fanfold.ray.rendezvous import HeldPort

HOLD = "from fanfold.ray.rendezvous import HeldPort; held = HeldPort({}); print(held.port, flush=True); input()"


def hold_elsewhere(port_range: str = "None") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD.format(port_range)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go(process: subprocess.Popen[str]) -> str:
    return process.communicate("\n", timeout=30)[1]


def bind_without_python(port: int, *, reuse: bool) -> bool:
    """Bind and listen as a library does: past Python's audit hooks."""
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        place = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes(12)
        return bool(libc.bind(own.fileno(), place, len(place)) == 0 and libc.listen(own.fileno(), 1) == 0)


def test_python_may_bind_the_port_of_its_own_process() -> None:
    held = HeldPort()
    with socket.socket() as own:
        own.bind(("", held.port))
        own.listen()


def test_other_ports_are_bound_without_letting_go() -> None:
    held = HeldPort()
    with socket.socket() as own:
        own.bind(("", 0))
    assert not bind_without_python(held.port, reuse=False)
    held.release()
    held.release()
    assert bind_without_python(held.port, reuse=False)


def test_a_library_binds_over_it() -> None:
    held = HeldPort()
    assert bind_without_python(held.port, reuse=True)
    held.release()


def test_torch_binds_over_it() -> None:
    distributed = pytest.importorskip("torch.distributed")
    held = HeldPort()
    store = distributed.TCPStore("127.0.0.1", held.port, 1, True, timeout=timedelta(seconds=20))
    store.set("key", "value")
    assert store.get("key") == b"value"
    held.release()


def test_other_processes_do_not_get_it() -> None:
    held = hold_elsewhere()
    port = int(first_line(held))
    with socket.socket() as own, pytest.raises(OSError, match="in use"):
        own.bind(("", port))
    let_go(held)


FIFTY = """
import ctypes, os, socket, sys
from fanfold.ray.rendezvous import HeldPort

libc = ctypes.CDLL(None)
answers, answer = os.pipe()
go, start = os.pipe()

def binds(port):
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes(12)
    return libc.bind(own.fileno(), place, len(place)) == 0 and libc.listen(own.fileno(), 1) == 0

children = []
for _ in range(50):
    child = os.fork()
    if child == 0:
        os.close(start)
        held = HeldPort()
        os.write(answer, f"{held.port:5}".encode())
        os.read(go, 1)
        os._exit(0 if binds(held.port) else 1)
    children.append(child)
ports = {os.read(answers, 5) for _ in children}
os.close(start)
ends = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
print(len(ports), ends)
"""


def test_fifty_at_once_are_all_different_and_all_can_be_bound() -> None:
    done = subprocess.run([sys.executable, "-c", FIFTY], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "50 {0}\n", done.stderr


def test_a_range_is_shared_out_and_its_end_is_said() -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        first = probe.getsockname()[1]
    ports = f"({first}, {first + 2})"
    holders = []
    try:
        for _ in range(2):
            holders.append(hold_elsewhere(ports))
            assert first_line(holders[-1]) in {str(first), str(first + 1), ""}
        third = hold_elsewhere(ports)
        assert first_line(third) == ""
        assert f"no port of {first} to {first + 1} is free" in let_go(third)
    finally:
        for holder in holders:
            let_go(holder)
