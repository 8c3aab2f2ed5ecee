"""`--encrypt`: what goes over the wire between hosts is not to be read, and everything works as without."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from machines.rank_programs import COUNTING
from running_distrun import DEADLINE

_PIDFD_GETFD = 438
PROGRAMS = Path(__file__).parents[2] / "parallel" / "programs"
MARK = b"a tensor that nobody may read..."
SENDING = f"""
import sys, numpy as np, distrun
from distrun.runtime.collectives.point_to_point import messages
distrun.init()
mark = np.frombuffer({MARK!r}, np.uint8)
for size in (1, 100, 100_000):  # with the messages, and on the rail
    own = np.tile(mark, size) if distrun.rank() == 0 else np.zeros(32 * size, np.uint8)
    assert (distrun.allreduce(own, op=distrun.Sum) == np.tile(mark, size)).all()
    assert (distrun.broadcast(own, 0) == np.tile(mark, size)).all()
messages.prepare()
for size in (1, 100, 100_000):
    own = np.tile(mark, size)
    if distrun.rank() == 0:
        messages.send(own.data, 1).wait()
    else:
        into = np.zeros(32 * size, np.uint8)
        messages.receive(into.data, [0]).wait()
        assert (into == own).all()
print("loaded" if {{"ssl", "cryptography"}} & set(sys.modules) else "not loaded")
assert distrun.broadcast_object({MARK!r} * (1 + distrun.rank()), 0) == {MARK!r}
print("sent", flush=True)
"""
WORKING = COUNTING.format(elements=4_000_000, pause=0)


class Wire:
    """Hears all that passes a host's link."""

    def __init__(self, host) -> None:
        everything = 0x0003
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(everything))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        self._socket.bind((host.link, everything))
        self._socket.settimeout(0.2)
        self._is_over = False
        self.packets: list[bytes] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                self.packets.append(self._socket.recv(1 << 17))
            except TimeoutError:
                if self._is_over:
                    return

    def close(self) -> bytes:
        """Return all that was heard."""
        self._is_over = True
        self._thread.join()
        self._socket.close()
        return b"|".join(self.packets)


@pytest.fixture
def wire(beta):
    made = Wire(beta)
    yield made
    made.close()


@pytest.mark.parametrize("is_encrypted", [pytest.param(True, marks=pytest.mark.gate), False])
def test_tensors_cannot_be_read_on_the_wire(output, python, wire, is_encrypted):
    options = ["--encrypt"] * is_encrypted
    assert (b"] not loaded" in output("-H", "alpha:1,beta:1", *options, *python(SENDING))) != is_encrypted
    heard = wire.close()
    assert len(heard) > 3_000_000
    assert (MARK in heard) != is_encrypted


def test_collectives_are_as_right_as_without(run_each):
    programs = ("allreduce", "errors", "order", "each_kind", "messages", "process_sets")
    run_each("localhost:1,beta:1,alpha:2", *programs, options=("--encrypt",))


@pytest.mark.parametrize("program", ["lifecycle", "bursts"])
def test_a_life_between_two_hosts(distrun, program):
    job = distrun("-H", "alpha:1,beta:1", sys.executable, str(PROGRAMS / f"{program}.py"), DISTRUN_ENCRYPT="1")
    assert job.wait(4 * DEADLINE) == 0, job.stderr.data[-5000:].decode()


def test_a_rank_that_is_killed_in_the_middle_is_named(ready, beta):
    job = ready(2, "-H", "alpha:1,beta:1", "--encrypt", code=WORKING, sign=b"step")
    (rank,) = (item for item in beta.processes() if item.environ().get("RANK") == "1")
    os.kill(rank.pid, signal.SIGKILL)
    assert f"rank 1 on beta (pid {rank.pid}) was killed by SIGKILL".encode() in job.ended(137)


def test_a_cut_link_ends_the_job_and_a_short_cut_does_not(ready, beta):
    job = ready(2, "-H", "alpha:1,beta:1", "--encrypt", "--keepalive", "6", code=WORKING, sign=b"step")
    beta.cut()
    time.sleep(2)
    beta.mend()
    job.stdout.wait_for(b"step", job.stdout.data.count(b"step") + 10)
    with beta.cut_off():
        assert job.wait() == 1
        beta.assert_gone()


def connections_of(pid: int) -> list[socket.socket]:
    """Return copies of a process's TCP connections, as root may take them."""
    pidfd, libc, found = os.pidfd_open(pid), ctypes.CDLL(None), []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(entry).startswith("socket:"):
            connection = socket.socket(fileno=libc.syscall(_PIDFD_GETFD, pidfd, int(entry.name), 0))
            if connection.family == socket.AF_INET:
                found.append(connection)
            else:
                connection.close()
    os.close(pidfd)
    return found


def test_words_that_somebody_puts_into_a_connection_end_the_job_with_a_sentence(ready, beta):
    """Such words end the connection, and change nothing; here root takes the rank's own descriptors for it."""
    job = ready(2, "-H", "alpha:1,beta:1", "--encrypt", code=WORKING, sign=b"step")
    (rank,) = (item for item in beta.processes() if item.environ().get("RANK") == "1")
    touched = 0
    for connection in connections_of(rank.pid):
        with connection:
            touched += 1
            try:
                connection.send(b"\x17\x03\x03\x00\x20" + bytes(32))
            except BlockingIOError:  # it is being written to, and full
                continue
    assert touched == 3
    said = job.ended(1).decode()
    assert re.search(r"JobAbortedError: .*rank [01] .* is gone: its connection broke \(what came was changed", said), (
        said
    )


@pytest.mark.gate
def test_what_cannot_be_encrypted_is_refused(distrun, python):
    for variable, value in (("DISTRUN_BACKEND", "mpi"), ("DISTRUN_GPU_BACKEND", "nccl")):
        said = distrun("-H", "alpha:1,beta:1", "--encrypt", *python(SENDING), **{variable: value}).ended(2)
        assert f"{variable}='{value}' moves arrays by a library".encode() in said


KEYS = """
import sys
import distrun.runtime.transport.mpi.rendezvous as mpi_rendezvous
find = mpi_rendezvous.find
def told(*arguments):
    endpoint = find(*arguments)
    sys.stdout.write(f"key {endpoint.key.hex()}\\n")  # in one piece, to be found in what is heard
    return endpoint
mpi_rendezvous.find = told
import numpy as np, distrun
distrun.init()
assert distrun.allreduce(np.ones(1), op=distrun.Sum) == 2
"""


def test_the_job_key_does_not_pass_through_mpi(mpirun, python, wire):
    job = mpirun("-H", "alpha:1,beta:1", "--no-tag-output", *python(KEYS))
    assert job.wait() == 0, job.stderr.data
    heard = wire.close()
    (key,) = {line.split()[-1] for line in job.stdout.data.splitlines() if b"key" in line}
    assert len(key) == 64
    assert job.stdout.data.count(key) == 2
    heard = heard.replace(b"key " + key, b"")  # what the ranks print goes through mpirun
    assert key not in heard
    assert bytes.fromhex(key.decode()) not in heard
