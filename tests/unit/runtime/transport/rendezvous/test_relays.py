"""In a large job one rank of each host connects with rank 0 for all, and errors are those of jobs where each does."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple
from typing import Any

import pytest
from in_process.rendezvous_of_threads import DEADLINE, HERE, KEY, RankThread, check_reachable, close, errors
from shell import wait_until

from distrun.host.connections import listener
from distrun.host.connections.dialer import dial
from distrun.runtime.transport.rendezvous import across_hosts, at_host
from distrun.runtime.transport.rendezvous.local_connections import LocalListener, connect_locally
from distrun.runtime.transport.rendezvous.protocol import (
    ALARM,
    CONTROL,
    Member,
    MessageReader,
    RendezvousEndpoint,
    pack_message,
    send_message,
)
from distrun.runtime.transport.rendezvous.relay import Relay
from distrun.runtime.transport.rendezvous.server import Server
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
PLACE = "relay"


class Stop:
    """An interruption that comes when the test says so."""

    def __init__(self) -> None:
        self.stop_fd = os.eventfd(0)
        self.interruption: str | None = None

    def come(self, reason: str) -> None:
        self.interruption = reason
        os.eventfd_write(self.stop_fd, 1)

    def close(self) -> None:
        os.close(self.stop_fd)


class Job:
    """A job whose ranks are threads; its hosts have as many ranks as `counts` says."""

    def __init__(self, endpoint: RendezvousEndpoint, counts: tuple[int, ...]) -> None:
        self.endpoint = endpoint
        self.size = sum(counts)
        self.hosts = [host for host, count in enumerate(counts) for _ in range(count)]
        self._name = secrets.token_hex(8)

    def rendezvous(self, rank: int, key: bytes | None = KEY) -> LocalRendezvous:
        return LocalRendezvous(f"{self._name}.{self.hosts[rank]}", key)

    def rank(self, rank: int, **options: Any) -> Rank:
        return Rank(self, rank, **options)

    def ranks(self, *ranks: int, **options: Any) -> list[Rank]:
        return [Rank(self, rank, **options) for rank in ranks]

    def relay(self, rank: int, **options: Any) -> Rank:
        """Start a rank, and wait until it has its host's place."""
        started = Rank(self, rank, **options)
        wait_until(lambda: self.is_claimed(rank))
        return started

    def is_claimed(self, rank: int) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(self.rendezvous(rank).address(PLACE))
            except OSError:
                return True
        return False


class Rank(RankThread):
    """A rank of a job, which goes by way of its host's relay."""

    def __init__(
        self,
        job: Job,
        rank: int,
        timeout: float = DEADLINE,
        endpoint: RendezvousEndpoint | None = None,
        rendezvous: LocalRendezvous | None = None,
        is_alone: bool = False,
        size: int = 0,
        stop: Stop | None = None,
    ) -> None:
        """`is_alone`: connects with rank 0 itself."""
        host = f"id-{job.hosts[rank]}"
        super().__init__(
            rank, size or job.size, host, host.replace("id", "host"), endpoint or job.endpoint, {"fusion": 64 + rank},
            timeout, "", stop, 15.0, None if is_alone else rendezvous or job.rendezvous(rank),
        )  # fmt: skip

    def await_waiting(self) -> None:
        """Wait until it has been let in by rank 0 or by its relay, and waits for the table."""
        wait_until(lambda: self.is_in("introduce", "receive_packed") and self.is_in("_receive_table", "_await_relay"))

    def is_with_relay(self) -> bool:
        """Whether it waits for its relay, which has not found rank 0 yet."""
        return self.is_in("_connect_with_relay") and self.is_in("await_readable")


@pytest.fixture
def job(endpoint) -> Job:
    return Job(endpoint, (2, 3, 3))


@pytest.fixture
def stop() -> Iterator[Stop]:
    stop = Stop()
    yield stop
    stop.close()


# All is well ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("order", [range(8), range(7, -1, -1)], ids=["rising", "falling"])
def test_all_ranks_get_the_table_and_rank_0_has_two_connections_with_each_other_host(
    join, endpoint, order, is_encrypted
):
    if is_encrypted:
        pytest.importorskip("cryptography")
    job = Job(RendezvousEndpoint(endpoint.addresses, KEY, is_encrypted=is_encrypted), (2, 3, 3))
    ranks = {rank: job.rank(rank) for rank in order}
    joined = join([ranks[rank] for rank in range(8)])
    members = joined[0].members
    assert all(rendezvous.members == members for rendezvous in joined)
    assert [(member.rank, member.host, member.hostname) for member in members] == [
        (rank, f"id-{host}", f"host-{host}") for rank, host in enumerate(job.hosts)
    ]
    assert all(rendezvous.agreed == {"fusion": 64} for rendezvous in joined)
    assert all(rendezvous.key == KEY for rendezvous in joined)
    assert all(rendezvous.is_relayed for rendezvous in joined)
    assert all(rendezvous.is_encrypted == is_encrypted for rendezvous in joined)
    relays = sorted(joined[0].control)
    assert [job.hosts[relay] for relay in relays] == [1, 2]
    for rank, rendezvous in enumerate(joined[1:], 1):
        assert list(rendezvous.control) == list(rendezvous.alarms) == ([0] if rank in relays else [])
    for relay in relays:
        for kind in ("control", "alarms"):
            ours, theirs = getattr(joined[0], kind)[relay], getattr(joined[relay], kind)[0]
            assert ours.gettimeout() is None
            assert theirs.gettimeout() is None
            theirs.sendall(b"up")
            assert ours.recv(100) == b"up"
    assert not any(job.is_claimed(rank) for rank in range(8))


def test_each_rank_can_be_reached_where_the_table_says(join, job):
    check_reachable(join(job.ranks(*range(8))), 7)


def test_a_job_of_which_all_ranks_connect_themselves_is_as_ever(join, job):
    joined = join(job.ranks(*range(8), is_alone=True))
    assert not any(rendezvous.is_relayed for rendezvous in joined)
    assert sorted(joined[0].control) == list(range(2, 8))


def test_ranks_of_one_host_need_not_do_alike(join, job):
    relay = job.relay(3)
    joined = join([*[job.rank(rank, is_alone=rank in (4, 5)) for rank in (0, 1, 2, 4, 5, 6, 7)], relay])
    assert {3, 4, 5} < set(joined[0].control)
    assert joined[0].control.keys().isdisjoint({1, 2})
    assert all(rendezvous.is_relayed for rendezvous in joined)


def test_a_host_with_rank_0_may_be_the_only_large_one(join, endpoint):
    joined = join(Job(endpoint, (4, 1)).ranks(*range(5)))
    assert not any(rendezvous.is_relayed for rendezvous in joined)
    assert list(joined[0].control) == [4]


def test_rank_0_may_come_late(job):
    others = [job.relay(3), job.relay(7), *job.ranks(1, 2, 4, 5, 6)]
    wait_until(others[-1].is_with_relay)
    close([job.rank(0).end(), *[rank.end() for rank in others]])


def test_a_hundred_and_sixty_ranks_gather_quickly(join, endpoint):
    job = Job(endpoint, (8,) * 20)
    start = time.process_time()  # of all ranks together, whatever else the machine does
    joined = join(job.ranks(*range(160)))
    took = time.process_time() - start
    assert len(joined[0].control) == 19
    assert took < 10.0


def test_a_greeting_brings_the_key_to_all(join, endpoint):
    key = secrets.token_bytes(32)
    at_rank_0 = RendezvousEndpoint(endpoint.addresses, greeting=lambda: (b"sealed" + key, key))
    elsewhere = RendezvousEndpoint(endpoint.addresses, opener=lambda greeting: greeting.removeprefix(b"sealed"))
    job = Job(elsewhere, (1, 3))
    ranks = [
        job.rank(0, endpoint=at_rank_0),
        *[job.rank(rank, rendezvous=job.rendezvous(rank, None)) for rank in (1, 2, 3)],
    ]
    joined = join(ranks)
    assert all(rendezvous.key == key for rendezvous in joined)


# Strangers ------------------------------------------------------------------------------------------------------------


def test_a_rank_that_does_not_know_its_relays_key_connects_with_rank_0_itself(join, job):
    relay = job.relay(2)
    first = job.rank(0)
    relay.await_waiting()
    joined = join(
        [first, job.rank(1), relay, job.rank(3, rendezvous=job.rendezvous(3, KEY[::-1])), *job.ranks(4, 5, 6, 7)]
    )
    assert {2, 3} < set(joined[0].control)


@pytest.mark.parametrize("is_full", [False, True])
def test_ranks_whose_relays_name_is_taken_by_a_process_that_accepts_nobody_connect_themselves(
    join, job, is_full, monkeypatch, caplog
):
    monkeypatch.setattr(at_host, "_LISTEN_TIMEOUT", 0.1)
    with ExitStack() as kept:
        squatter, client = (kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(2))
        squatter.bind(address := job.rendezvous(2).address(PLACE))
        if is_full:
            squatter.listen(0)
            client.connect(address)
        joined = join(job.ranks(*range(8)))
    assert {2, 3, 4} < set(joined[0].control)
    said = f"a process of user id {os.getuid()} has taken the abstract socket @distrun-"
    assert sum(said in text and "connects with rank 0 directly" in text for text in caplog.messages) == 3


@pytest.mark.parametrize("junk", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(64)])
def test_an_intruder_at_a_host_delays_no_rank(job, junk, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 1000.0)  # waiting for it would take too long
    relay = job.relay(2)
    first = job.rank(0)
    relay.await_waiting()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as intruder:
        intruder.connect(job.rendezvous(2).address(PLACE))
        intruder.sendall(junk)
        close([rank.end() for rank in [first, relay, *job.ranks(1, 3, 4, 5, 6, 7)]])


def test_a_process_of_this_user_that_says_nonsense_is_no_rank(job):
    relay = job.relay(2)
    first = job.rank(0)
    relay.await_waiting()
    with pretended(job, 2, {"tea": 1}) as stranger:
        assert stranger.recv(1) == b""
    close([rank.end() for rank in [first, relay, *job.ranks(1, 3, 4, 5, 6, 7)]])


def pretended(job: Job, rank: int, introduction: dict[str, Any] | None = None) -> socket.socket:
    """Come to the relay of a rank's host like that rank."""
    host = job.hosts[rank]
    introduction = introduction or {
        "size": job.size,
        "member": astuple(Member(rank, f"id-{host}", f"host-{host}", 4711, "", 0)),
    }
    return connect_locally(job.rendezvous(rank).address(PLACE), KEY, introduction, time.monotonic() + DEADLINE, None)


# Somebody does not come -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [(1,), (2,), (4,), (2, 3, 4), (3, 5, 6)])
def test_rank_0_names_the_missing_ranks_to_those_that_came(job, missing, clock, monkeypatch):
    servers: list[Server] = []
    monkeypatch.setattr(across_hosts, "Server", lambda *job: servers.append(Server(*job)) or servers[-1])

    def knows_all() -> bool:
        """Whether rank 0 knows of all that have come, and has both connections with those that have them."""
        if not servers or len(servers[0]._members) < 8 - len(missing):
            return False
        return len(servers[0]._connections[CONTROL]) == len(servers[0]._connections[ALARM])

    others = [job.rank(rank) for rank in range(1, 8) if rank not in missing]
    leader = job.rank(0)
    wait_until(knows_all)
    clock.end_for(leader)
    texts = errors([leader, *others])
    named = {(1,): "rank 1", (2,): "rank 2", (4,): "rank 4", (2, 3, 4): "ranks 2-4", (3, 5, 6): "ranks 3, 5-6"}[missing]
    assert texts[0].startswith(f"{named} of 8 did not call init() within 60 s at 127.0.0.1:")
    assert set(texts) == {texts[0]}


def test_ranks_say_that_rank_0_does_not_answer(job, clock):
    ranks = [job.relay(2), job.rank(3)]
    wait_until(lambda: ranks[0] in clock.failed and ranks[1].is_with_relay())
    clock.end_for(*ranks)
    texts = errors(ranks)
    assert re.match(r"rank 2 did not find rank 0 within 60 s: .*\(connection refused\)", texts[0])
    assert texts[1].startswith("rank 3 did not find rank 0 within 60 s: ")


def test_a_rank_says_that_its_relay_has_not_found_rank_0(job, clock):
    relay = job.relay(2)
    (text,) = errors([job.rank(3, timeout=0.3)])
    assert text == (
        "rank 3 did not find rank 0 within 0.3 s: another rank of its host, which was to connect with rank 0 for both, "
        "had not yet; see what that one says"
    )
    clock.end_for(relay)
    errors([relay])


def test_when_a_relay_gives_up_another_rank_takes_its_place(join, job, clock):
    relay, other = job.relay(2), job.rank(3)
    wait_until(other.is_with_relay)
    clock.end_for(relay)
    errors([relay])
    wait_until(lambda: job.is_claimed(3))
    assert 3 in join([*job.ranks(0, 1, 2), other, *job.ranks(4, 5, 6, 7)])[0].control


def test_a_rank_that_comes_to_its_relay_and_dies_ends_the_waiting(job):
    relay = job.relay(2)
    others = [*job.ranks(0, 1), relay, job.rank(3)]
    for other in others[1:]:
        other.await_waiting()
    pretended(job, 4).close()
    texts = errors(others)
    assert texts[0].startswith("rank 4 (process 4711 on host host-1) came and ended again before all ranks had called")
    assert set(texts) == {texts[0]}


@pytest.mark.parametrize(
    ("rank", "size", "sentence"),
    [
        (3, 8, "rank 3 is there twice: process {pid} on host host-1 and process {pid} on host host-1"),
        (1, 8, "rank 1 is there twice: process {pid} on host host-0 and process {pid} on host host-0"),
        (4, 9, "rank 4 (process {pid} on host host-1) was told of 9 ranks and rank 0 (process {pid} on host host-0) "),
    ],
)
def test_numbers_that_contradict_each_other_are_an_error_everywhere(job, rank, size, sentence):
    relay = job.relay(2)
    others = [*job.ranks(0, 1), relay, job.rank(3)]
    for other in others[1:]:
        other.await_waiting()
    texts = errors([*others, job.rank(rank, size=size)])
    assert texts[0].startswith(sentence.format(pid=os.getpid()))
    assert set(texts) == {texts[0]}


def test_a_relay_that_dies_is_told_by_those_that_wait_with_it(job):
    other, connection = relayed_by_hand(job)
    connection.close()
    (text,) = errors([other])
    assert text.startswith(
        f"process {os.getpid()}, which connected with rank 0 for other ranks of its host, ended before all ranks had "
        "come (it closed the connection)"
    )


def test_a_relay_that_says_nothing_more_is_not_waited_for_without_end(job, monkeypatch):
    receive, waits = at_host.receive_packed, iter((DEADLINE, 0.1))  # of what the relay says, and of what it hands on

    def receive_soon(connection: socket.socket, until: float, interruption: Any) -> bytes:
        assert until < time.monotonic() + 1.5 * DEADLINE
        return receive(connection, time.monotonic() + next(waits), interruption)

    monkeypatch.setattr(at_host, "receive_packed", receive_soon)
    other, connection = relayed_by_hand(job)
    (text,) = errors([other])
    assert text == (
        f"rank 3 met process {os.getpid()}, which connected with rank 0 for other ranks of its host, and was not told "
        "within 60 s who is there"
    )
    connection.close()


def relayed_by_hand(job: Job) -> tuple[Rank, socket.socket]:
    """Let rank 3 come to a relay that is none; return it and the connection with it."""
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place.bind(job.rendezvous(3).address(PLACE))
    place.listen()
    listener = LocalListener(place, KEY)
    other = job.rank(3)
    client = listener.receive(DEADLINE)
    listener.close()
    connection = client[0]
    with socket.create_server((HERE, 0)) as opened:
        socket.send_fds(connection, [b"!"], [opened.fileno()])
    send_message(connection, {"endpoint": [HERE, 1], "key": ""}, DEADLINE)
    return other, connection


def test_a_relay_that_dies_is_named_on_other_hosts(job):
    first, others = job.rank(0), job.ranks(1, 5, 6)
    for other in others:
        other.await_waiting()
    member = ["id-1", "host-1", 4711, HERE, 1]
    introduction = {"purpose": "control", "size": 8, "member": [2, *member]}
    with dial(job.endpoint.addresses, KEY, introduction, time.monotonic() + DEADLINE).socket as relay:
        send_message(relay, {"came": [{"size": 8, "member": [3, *member]}], "ended": []}, DEADLINE)
    texts = errors([first, *others])
    assert texts[0].startswith("rank 2 (process 4711 on host host-1) came and ended again before all ranks had called")
    assert set(texts) == {texts[0]}


def test_a_rank_that_is_lost_while_all_are_told_ends_it_for_its_relay(join, job, monkeypatch):
    def lose_rank_4(self: Relay, packed: bytes, until: float, pass_on: Any = Relay.pass_on) -> None:
        for connection, member in self._others.values():
            if member.rank == 4:
                connection.shutdown(socket.SHUT_WR)
        pass_on(self, packed, until)

    monkeypatch.setattr(Relay, "pass_on", lose_rank_4)
    relay = job.relay(2)
    ranks = [*job.ranks(0, 1), relay, *job.ranks(3, 4, 5, 6, 7)]
    for rank in ranks:
        rank.join(2 * DEADLINE)
    sentence = f"rank 4 (process {os.getpid()} on host host-1) cannot be told who is there: "
    assert str(ranks[2].error).startswith(sentence)
    assert ranks[4].error is not None
    close([rank.end() for rank in ranks if rank.error is None])


# Interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_rank_0", [True, False])
def test_an_interrupted_relay_tells_why(job, stop, has_rank_0):
    relay = job.relay(2, stop=stop)
    first = job.ranks(0) if has_rank_0 else []
    other = job.rank(3, stop=None if has_rank_0 else stop)
    if has_rank_0:
        relay.await_waiting()
        other.await_waiting()
    else:
        wait_until(other.is_with_relay)
    stop.come("host gamma has joined")
    assert errors([relay, other]) == ["host gamma has joined"] * 2
    for text in errors(first):
        assert text.startswith("rank 2 (process")


def test_an_interrupted_rank_does_not_wait_for_its_relay(job, stop):
    relay = job.relay(2)
    first, other = job.rank(0), job.rank(3, stop=stop)
    relay.await_waiting()
    other.await_waiting()
    stop.come("host gamma has joined")
    assert errors([other]) == ["host gamma has joined"]
    texts = errors([first, relay])
    assert texts[0].startswith("rank 3 (process")
    assert texts[1] == texts[0]


# Messages -------------------------------------------------------------------------------------------------------------


def test_messages_are_received_as_they_come():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = MessageReader(ours)
        assert reader.receive() == []
        packed = pack_message({"a": 1}) + pack_message({"b": "x" * 1000}) + pack_message({"c": 3})
        theirs.sendall(packed[:2])
        assert reader.receive() == []
        theirs.sendall(packed[2:-1])
        assert reader.receive() == [{"a": 1}, {"b": "x" * 1000}]
        theirs.sendall(packed[-1:])
        assert reader.receive() == [{"c": 3}]
        assert ours.gettimeout() is None
        theirs.close()
        with pytest.raises(ConnectionError):
            reader.receive()
