"""A rank of another host dies, leaves, stops or is slow, or intruders connect: all ranks learn it, and none hangs."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import threading
import time

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import listening_ports, ready

from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial

GATE = pytest.mark.gate


@GATE
@pytest.mark.parametrize("victim", one_in_gate(1, 0))
def test_a_stopped_rank_is_a_stall_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "working", "-1", hosts=(1, 1), DISTRUN_STALL_WARNING="0.3"))
    for rank in everybody:
        rank.stdout.wait_for("big: done\n")
    everybody[victim].signal(signal.SIGSTOP)
    if victim == 1:
        everybody[0].stderr.wait_for("rank 1 (process")
    other = everybody[1 - victim].stdout
    before = other.text.count("done\n")
    everybody[victim].signal(signal.SIGCONT)
    other.wait_for("done\n", times=before + 5)
    assert "Error" not in other.text
    everybody[0].signal(signal.SIGKILL)
    assert everybody[1].end() == 0
    assert everybody[0].end() == -signal.SIGKILL


# Starting -------------------------------------------------------------------------------------------------------------


@GATE
@pytest.mark.parametrize(
    ("absent", "said"),
    [
        (1, r"rank 1 of 2 did not call init\(\) within 0.5 s at 127"),
        (0, r"rank 1 did not find rank 0 within 0.5 s: "),
    ],
)
def test_a_rank_that_never_comes_is_named_in_time(ranks, absent, said):
    """That those which have come are all told is shown in tests/unit/runtime/transport/rendezvous."""
    everybody = ranks("late", str(absent), hosts=(1, 1), DISTRUN_START_TIMEOUT="0.5")
    assert everybody[1 - absent].end() == 1
    assert re.search(f"BootstrapError: .*{said}", everybody[1 - absent].stderr.text), everybody[1 - absent].stderr.text
    everybody[absent].signal(signal.SIGKILL)


def test_a_rank_that_dies_while_the_others_gather_ends_their_wait(ranks):
    everybody = ranks("late", "2", hosts=(1, 1, 1))
    listening_ports(everybody[1].pid)  # it has met rank 0
    everybody[1].signal(signal.SIGKILL)
    assert everybody[0].end() == 1
    assert re.search(
        r"BootstrapError: rank 1 \(process \d+ on host host1\) came and ended again", everybody[0].stderr.text
    )
    everybody[2].tell("now")
    everybody[2].signal(signal.SIGKILL)


@GATE
@pytest.mark.parametrize("victim", one_in_gate(1, 2))
def test_a_rank_that_dies_while_the_others_gather_is_named_where_one_connects_for_its_host(ranks, victim):
    everybody = ranks("late", "3", hosts=(1, 3), DISTRUN_FAN_OUT="1")
    for rank in everybody[1:3]:
        listening_ports(rank.pid)  # it has met rank 0, or the rank that connects with rank 0 for it
    everybody[victim].signal(signal.SIGKILL)
    pid = everybody[victim].pid
    assert everybody[0].end() == 1
    said = everybody[0].stderr.text
    assert f"BootstrapError: rank {victim} (process {pid} on host host1) came and ended again before all" in said, said
    assert everybody[3 - victim].end() == 1
    said = everybody[3 - victim].stderr.text
    assert re.search(rf"BootstrapError: .*process {pid}\b.* ended .*before all ranks had", said), said
    everybody[3].tell("now")
    everybody[3].signal(signal.SIGKILL)


class Intruders:
    """Clients that are no ranks: silent, talkative, slow, with a wrong key, or gone again."""

    def __init__(self, port: int) -> None:
        self._place = ("127.0.0.1", port)
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()
        self._trickle = threading.Thread(target=self._drip)
        self._wrong = threading.Thread(target=self._guess)
        for words in (b"", b"", secrets.token_bytes(100_000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 12):
            self._connect(words)
        self._connect(b"").close()
        self._slow = self._connect(b"")
        self._trickle.start()
        self._wrong.start()
        self.refusal = ""

    def _connect(self, words: bytes) -> socket.socket:
        made = socket.create_connection(self._place)
        self._sockets.append(made)
        made.setblocking(False)
        try:
            made.send(words)
        except OSError:
            pass
        return made

    def _drip(self) -> None:
        for byte in range(1000):
            try:
                self._slow.send(bytes([byte % 256]))
            except OSError:
                return
            if self._over.wait(0.05):
                return

    def _guess(self) -> None:
        try:
            dial([self._place], os.urandom(32), {"rank": 1, "purpose": "data"}, time.monotonic() + 3).socket.close()
            self.refusal = "none"
        except BootstrapError as error:
            self.refusal = str(error)

    def close(self) -> None:
        self._over.set()
        self._trickle.join()
        self._wrong.join()
        for made in self._sockets:
            made.close()


@GATE
@pytest.mark.parametrize("place", one_in_gate(0, 1), ids=["the rendezvous", "a data port"])
def test_intruders_disturb_nothing(ranks, place):
    everybody = ranks("late", "2", hosts=(1, 1, 1))
    everybody[2].stdout.wait_for("waiting")
    intruders = [Intruders(port) for port in listening_ports(everybody[place].pid)]
    everybody[2].tell("now you")
    for rank in everybody:
        rank.stdout.wait_for("ready")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    for each in intruders:
        each.close()
        assert "none" not in each.refusal, "somebody without the key was let in"
