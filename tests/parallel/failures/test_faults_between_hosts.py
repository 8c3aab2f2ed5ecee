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
from without_launcher.unlaunched_ranks import check_a_kill, listening_ports, named, ready

from distrun.errors import BootstrapError
from distrun.host.connections.dialer import dial

DEADLINE = 60.0  # seconds; far more than anything takes


@pytest.mark.parametrize(
    ("hosts", "victim", "host"),
    [
        *(((1, 1), 0, 0), ((1, 1), 1, 1), ((2, 2), 0, 0), ((2, 2), 1, 0), ((2, 2), 2, 1), ((2, 2), 3, 1)),
        *(((1, 2), 2, 1), ((1, 1, 1), 0, 0), ((1, 1, 1), 1, 1)),
    ],
)
@pytest.mark.parametrize("scenario", ["waiting", "working"])
def test_a_killed_rank_is_named_on_every_host_within_a_second(ranks, scenario, hosts, victim, host):
    check_a_kill(ranks, scenario, hosts, victim, host)


@pytest.mark.parametrize(("victim", "host"), [(1, 0), (2, 1), (3, 1)])
def test_a_killed_rank_is_named_while_a_process_set_works_to_which_it_may_not_belong(ranks, victim, host):
    check_a_kill(ranks, "working in a set", (2, 2), victim, host)


@pytest.mark.parametrize(("victim", "host"), [(0, 0), (1, 1), (2, 1), (3, 2)])
def test_a_killed_rank_is_named_where_leaders_of_hosts_pass_messages_on(ranks, victim, host):
    check_a_kill(ranks, "waiting", (1, 2, 1), victim, host, DISTRUN_FAN_OUT="1")


@pytest.mark.parametrize("algorithm", ["direct", "ring", "halving-doubling", "tree"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_whatever_the_algorithm(ranks, algorithm, victim):
    check_a_kill(ranks, "working", (1, 1, 1), victim, victim, DISTRUN_ALGORITHM=algorithm)


@pytest.mark.parametrize("how", ["returns", "exit"])
@pytest.mark.parametrize(("hosts", "victim"), [((1, 1), 0), ((1, 1), 1), ((1, 1, 1), 2), ((2, 2), 3), ((2, 2), 0)])
def test_a_rank_that_ends_while_others_wait_has_left(ranks, how, hosts, victim):
    everybody = ready(ranks("faults", "waiting", str(victim), hosts=hosts))
    everybody[victim].tell(how)
    assert everybody[victim].end() == (3 if how == "exit" else 0)
    for rank in everybody:
        if rank is not everybody[victim]:
            assert rank.end() == 0
            assert re.search(
                rf"first: JobAbortedError: .*rank {victim} .*has left: it called shutdown\(\) or its script ended",
                rank.stdout.text,
            )


@pytest.mark.parametrize(("hosts", "victim", "host"), [((1, 1), 0, 0), ((1, 1), 1, 1), ((1, 2), 2, 1), ((2, 1), 0, 0)])
def test_a_missing_rank_is_reported_with_its_stack_and_the_job_goes_on(ranks, hosts, victim, host):
    everybody = ready(ranks("faults", "busy", str(victim), hosts=hosts, DISTRUN_STALL_WARNING="0.3"))
    # The first report may come before all others have submitted it, or the victim has begun its loop.
    alone = rf"allreduce 'first' has waited for .*, not by {named(victim, everybody[victim].pid, host)}\n"
    everybody[0].stderr.wait_for_match(alone)
    assert ("on host" in re.search(alone, everybody[0].stderr.text)[0]) == (host != 0)
    everybody[0].stderr.wait_for_match(
        rf"rank {victim} had been busy with the script's own code for \d+\.\d s; its main thread is at\n"
    )
    everybody[0].stderr.wait_for("in busy_with_something_else")
    everybody[0].stderr.wait_for("select.select([sys.stdin]")
    everybody[victim].tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert "first: done\nsecond: done\nend\n" in rank.stdout.text
    assert all("has waited for" not in rank.stderr.text for rank in everybody[1:]), "only rank 0 reports"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_an_operation_given_up_fails_on_all_hosts_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "given up", str(victim), hosts=(1, 1, 1), DISTRUN_STALL_TIMEOUT="1"))
    for place, rank in enumerate(everybody):
        if place != victim:
            rank.stdout.wait_for("first: StallError")
    everybody[victim].tell("go on")
    everybody[victim].stdout.wait_for("first: StallError")
    for rank in everybody:
        rank.tell("go on")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        assert re.search(rf"first: StallError: allreduce 'first' .*not by rank {victim} ", rank.stdout.text)
        assert "second: done\nend\n" in rank.stdout.text


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_a_stall_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "waiting", "-1", hosts=(1, 1), DISTRUN_STALL_WARNING="0.3"))
    for rank in everybody:
        rank.stdout.wait_for("end\n")
        rank.end()
    everybody = ranks("faults", "working", "-1", hosts=(1, 1), DISTRUN_STALL_WARNING="0.3")
    for rank in ready(everybody):
        rank.stdout.wait_for("big: done\n")
    everybody[victim].signal(signal.SIGSTOP)
    if victim == 1:
        everybody[0].stderr.wait_for("rank 1 (process")
    before = everybody[1 - victim].stdout.text.count("done")
    everybody[victim].signal(signal.SIGCONT)
    deadline = time.monotonic() + DEADLINE
    while everybody[1 - victim].stdout.text.count("done") < before + 5:
        assert time.monotonic() < deadline
        assert "Error" not in everybody[1 - victim].stdout.text
    everybody[0].signal(signal.SIGKILL)
    assert everybody[1].end() == 0
    assert everybody[0].end() == -signal.SIGKILL


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_stopped_in_the_middle_of_an_operation_is_given_up_by_name(ranks, victim):
    everybody = ready(ranks("faults", "stopped inside", str(victim), hosts=(1, 1), DISTRUN_STALL_TIMEOUT="1"))
    other = everybody[1 - victim]
    other.stdout.wait_for("JobAbortedError")
    everybody[victim].signal(signal.SIGKILL)
    assert other.end() == 0
    said = other.stdout.text
    assert re.search(
        rf"JobAbortedError: gave up after 1 s: allreduce 'first', .*rank {victim} \(process \d+ on host host{victim}\)",
        said,
    ), said


@pytest.mark.parametrize("victim", [0, 1])
def test_an_interrupt_is_raised_where_it_happened_and_ends_the_job_for_all(ranks, victim):
    everybody = ready(ranks("faults", "interrupted", str(victim), hosts=(1, 1), DISTRUN_STALL_WARNING="0.2"))
    everybody[0].stderr.wait_for("allreduce 'first' has waited")  # so the victim is inside it
    everybody[victim].signal(signal.SIGINT)
    everybody[victim].stdout.wait_for("KeyboardInterrupt\n")
    everybody[1 - victim].tell("now you")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    text = f"JobAbortedError: .*rank {victim} was interrupted while communicating: KeyboardInterrupt"
    assert re.search(f"second: {text}", everybody[victim].stdout.text)
    assert re.search(f"first: {text}", everybody[1 - victim].stdout.text)


def test_an_idle_job_over_hosts_costs_nothing(ranks):
    everybody = ranks("idle", hosts=(1, 2))
    for rank in everybody:
        rank.stdout.wait_for("idle")
    for rank in ranks("missing"):  # the time in which they are watched is the life of another job
        assert rank.end() == 0
    for rank in everybody:
        rank.tell("enough")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        cpu, switches = rank.stdout.text.split()[-2:]
        assert float(cpu) <= 0.01, f"an idle rank used {cpu} s of processor time"
        assert int(switches) <= 10, f"an idle rank woke up {switches} times"


# Starting -------------------------------------------------------------------------------------------------------------


def tell_all_but(absent, everybody):
    """Let all ranks but one join, at the same time: they have imported all that takes time."""
    for rank in everybody:
        rank.stdout.wait_for("waiting")
    for rank in everybody:
        if rank is not absent:
            rank.tell("now")


def test_a_rank_that_never_comes_is_named_on_every_host_in_time(ranks):
    everybody = ranks("late", "0,1,2", hosts=(1, 1, 1), DISTRUN_START_TIMEOUT="3")
    tell_all_but(everybody[2], everybody)
    for rank in everybody[:2]:
        assert rank.end() == 1
        assert re.search(r"BootstrapError: .*ranks? \[?2\]? of 3 did not call init\(\) within 3 s", rank.stderr.text), (
            rank.stderr.text
        )
    everybody[2].signal(signal.SIGKILL)


def test_a_first_rank_that_never_comes_is_named_in_time(ranks):
    everybody = ranks("late", "0", hosts=(1, 1), DISTRUN_START_TIMEOUT="2")
    assert everybody[1].end() == 1
    assert re.search(r"BootstrapError: rank 1 did not find rank 0 within 2 s: ", everybody[1].stderr.text)
    everybody[0].signal(signal.SIGKILL)


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


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_rank_that_never_comes_is_named_where_one_connects_with_rank_0_for_its_host(ranks, victim):
    everybody = ranks("late", "0,1,2,3", hosts=(1, 3), DISTRUN_FAN_OUT="1", DISTRUN_START_TIMEOUT="5")
    tell_all_but(everybody[victim], everybody)
    for rank in everybody:
        if rank is not everybody[victim]:
            assert rank.end() == 1
            said = rank.stderr.text
            assert f"BootstrapError: rank {victim} of 4 did not call init() within 5 s at 127.0.0.1:" in said, said
    everybody[victim].signal(signal.SIGKILL)


@pytest.mark.parametrize("victim", [1, 2])
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


@pytest.mark.parametrize("place", [0, 1], ids=["the rendezvous", "a data port"])
def test_intruders_disturb_nothing(ranks, place):
    everybody = ranks("late", "2", hosts=(1, 1, 1))
    everybody[2].stdout.wait_for("waiting")
    crowds = [Intruders(port) for port in listening_ports(everybody[place].pid)]
    started = time.monotonic()
    everybody[2].tell("now you")
    for rank in everybody:
        rank.stdout.wait_for("ready")
    assert time.monotonic() - started < 8, "a rank waited for an intruder"
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    for crowd in crowds:
        crowd.close()
        assert "none" not in crowd.refusal, "somebody without the key was let in"
