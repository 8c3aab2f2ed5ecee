"""The ranks of all hosts meet at rank 0, whatever else connects, and say who is missing if they cannot."""

from __future__ import annotations

import os
import resource
import socket
import time

import pytest
from in_process.rendezvous_of_threads import DEADLINE, HERE, KEY, RankThread, check_reachable, close, errors
from shell import wait_until

from distrun.errors import BootstrapError, UsageError
from distrun.host.connections import listener
from distrun.host.connections.dialer import dial
from distrun.runtime.transport.rendezvous import across_hosts, client, server
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint, parse_endpoints

pytestmark = pytest.mark.usefixtures("no_descriptors_left")


class Rank(RankThread):
    """A rank of a host of its own, unless `host` says otherwise."""

    def __init__(
        self,
        rank: int,
        size: int,
        endpoint: RendezvousEndpoint,
        host: str = "",
        timeout: float = DEADLINE,
        network: str = "",
        keepalive: float = 15.0,
    ) -> None:
        host = host or f"id-{rank}"
        super().__init__(
            rank, size, host, host.replace("id", "host"), endpoint, {"fusion": 64 + rank}, timeout, network,
            None, keepalive,
        )  # fmt: skip


# All is well --------------------------------------------------------------------------------------------------------


def test_everybody_knows_everybody_and_rank_0s_settings(join, endpoint):
    ranks = [Rank(rank, 6, endpoint, f"id-{rank // 2}") for rank in reversed(range(6))]
    joined = join(reversed(ranks))
    members = joined[0].members
    assert all(rendezvous.members == members for rendezvous in joined)
    assert [(member.rank, member.host, member.hostname) for member in members] == [
        (rank, f"id-{rank // 2}", f"host-{rank // 2}") for rank in range(6)
    ]
    assert {member.pid for member in members} == {os.getpid()}
    assert (members[0].address, members[0].port) == endpoint.addresses[0]
    assert all(rendezvous.agreed == {"fusion": 64} for rendezvous in joined)
    assert all(rendezvous.key == KEY for rendezvous in joined)


def test_an_address_with_several_ports_is_one_address_to_listen_at_later(join, endpoint):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((HERE, 0))
        several = RendezvousEndpoint((*endpoint.addresses, (HERE, other.getsockname()[1])), KEY)
        joined = join([Rank(rank, 2, several) for rank in range(2)])
    assert len(joined[0].listener.endpoints) == 2
    assert joined[0].addresses(15.0).own == (HERE,)


def test_all_connections_have_the_keepalive_of_the_job(join, endpoint):
    joined = join([Rank(rank, 2, endpoint, keepalive=60.0) for rank in range(2)])
    connections = [*joined[0].control.values(), *joined[1].control.values()]
    connections += [*joined[0].alarms.values(), *joined[1].alarms.values()]
    times = [
        [connection.getsockopt(socket.IPPROTO_TCP, option) for option in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]
        for connection in connections
    ]
    assert times == [[6, 10]] * 4


def test_rank_0_keeps_connections_with_the_ranks_of_other_hosts_only(join, endpoint):
    joined = join([Rank(rank, 5, endpoint, "ab"[rank % 2]) for rank in range(5)])
    for kind in ("control", "alarms"):
        assert [sorted(getattr(rendezvous, kind)) for rendezvous in joined] == [[1, 3], [0], [], [0], []]
        for rank in (1, 3):
            ours, theirs = getattr(joined[0], kind)[rank], getattr(joined[rank], kind)[0]
            assert ours.gettimeout() is None
            assert theirs.gettimeout() is None
            ours.sendall(f"{kind} {rank}".encode())
            assert theirs.recv(100) == f"{kind} {rank}".encode()


def test_each_rank_can_be_reached_where_the_table_says(join, endpoint):
    check_reachable(join([Rank(rank, 4, endpoint) for rank in range(4)]), 2)


def test_two_hundred_ranks_gather_quickly(join, endpoint):
    start = time.process_time()  # of all ranks together, whatever else the machine does
    joined = join([Rank(rank, 200, endpoint, f"id-{rank // 8}") for rank in range(200)])
    took = time.process_time() - start
    assert len(joined[0].control) == 192
    assert took < 5.0


def test_rank_0_may_come_late(endpoint, clock):
    others = [Rank(rank, 3, endpoint) for rank in (1, 2)]
    wait_until(lambda: clock.failed.issuperset(others))
    assert all(rank.is_alive() for rank in others)
    close([Rank(0, 3, endpoint).end(), *[rank.end() for rank in others]])


def test_rendezvous_again_at_the_same_place_works(endpoint):
    for _ in range(3):
        close([rank.end() for rank in [Rank(rank, 3, endpoint) for rank in range(3)]])


def test_rank_0_listens_at_those_addresses_of_the_place_that_are_its_own(join, endpoint):
    port = endpoint.addresses[0][1]
    many = RendezvousEndpoint((("203.0.113.7", port), (HERE, port), ("127.0.0.2", port), (HERE, port)), KEY)
    joined = join([Rank(0, 3, many), Rank(1, 3, endpoint), Rank(2, 3, RendezvousEndpoint((("127.0.0.2", port),), KEY))])
    assert joined[0].listener.endpoints == [(HERE, port), ("127.0.0.2", port)]
    assert [rendezvous.members[0].address for rendezvous in joined] == [HERE, HERE, "127.0.0.2"]
    assert joined[0].members[1:] == joined[1].members[1:] == joined[2].members[1:]


def test_the_network_decides_where_ranks_listen(join, endpoint):
    joined = join([Rank(rank, 3, endpoint, network="127.0.0.0/8") for rank in range(3)])
    assert {member.address for member in joined[1].members} == {HERE}


# Intruders ----------------------------------------------------------------------------------------------------------


def test_two_hundred_that_connect_and_hang_delay_no_rank(endpoint, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 1000.0)  # waiting for one would take too long
    leader = Rank(0, 4, endpoint)
    hanging = [connect_and_hang(endpoint) for _ in range(200)]
    close([rank.end() for rank in [leader, *[Rank(rank, 4, endpoint) for rank in (1, 2, 3)]]])
    for connection in hanging:
        connection.close()


def connect_and_hang(endpoint: RendezvousEndpoint) -> socket.socket:
    """Connect as soon as somebody listens."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return socket.create_connection(endpoint.addresses[0], DEADLINE)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"


def test_clients_without_the_key_are_mentioned_when_a_rank_is_missing(endpoint, clock):
    leader = Rank(0, 2, endpoint)
    stranger = Rank(1, 2, RendezvousEndpoint(endpoint.addresses, KEY[::-1]))
    wait_until(lambda: stranger in clock.refused)
    clock.end_for(stranger)
    with pytest.raises(BootstrapError, match="does not accept the job key"):
        stranger.end()
    clock.end_for(leader)
    (text,) = errors([leader])
    assert text.startswith("rank 1 of 2 did not call init() within 60 s at 127.0.0.1:")
    assert "did not know the job key" in text


# Somebody does not come ---------------------------------------------------------------------------------------------


def test_rank_0_names_the_missing_ranks_to_those_that_came(endpoint, clock):
    leader, *others = [Rank(rank, 8, endpoint) for rank in (0, 1, 2, 4)]
    for other in others:
        await_table(leader, other)
    clock.end_for(leader)
    texts = errors([leader, *others])
    assert texts[0].startswith("ranks 3, 5-7 of 8 did not call init() within 60 s at 127.0.0.1:")
    assert "--start-timeout" in texts[0]
    assert set(texts) == {texts[0]}


def test_a_rank_says_that_rank_0_does_not_answer(endpoint, clock):
    rank = Rank(3, 4, endpoint)
    wait_until(lambda: rank in clock.failed)
    clock.end_for(rank)
    (text,) = errors([rank])
    assert text.startswith("rank 3 did not find rank 0 within 60 s: no connection was made within ")
    assert f" s: 127.0.0.1:{endpoint.addresses[0][1]} (connection refused)" in text


def test_a_rank_says_that_it_met_rank_0_but_others_are_missing(endpoint, monkeypatch):
    monkeypatch.setattr(client, "ERROR_TIMEOUT", 0.2 - DEADLINE)  # it waits 0.2 s for the others
    leader = Rank(0, 3, endpoint)
    with pytest.raises(BootstrapError, match=r"rank 1 met rank 0 at 127\.0\.0\.1:\d+, but some rank .* within 60 s"):
        Rank(1, 3, endpoint).end()
    (text,) = errors([leader])
    assert text.startswith(f"rank 1 (process {os.getpid()} on host host-1) came and ended again")


def test_a_rank_that_comes_and_dies_ends_the_waiting(endpoint):
    leader = Rank(0, 3, endpoint)
    other = Rank(2, 3, endpoint)
    await_table(leader, other)
    introduction = {"purpose": "control", "size": 3, "member": [1, "id-1", "host-1", 4711, HERE, 1]}
    dial(endpoint.addresses, KEY, introduction, time.monotonic() + DEADLINE).socket.close()
    texts = errors([leader, other])
    assert texts[0].startswith("rank 1 (process 4711 on host host-1) came and ended again before all ranks had called")


@pytest.mark.parametrize(
    ("rank", "size", "sentence"),
    [
        (1, 3, "rank 1 is there twice: process {pid} on host host-1 and process {pid} on host other"),
        (3, 3, "rank 3 (process {pid} on host other) connected with rank 0 of 3: ranks from 1 to 2 are expected"),
        (
            2,
            4,
            "rank 2 (process {pid} on host other) was told of 4 ranks and rank 0 (process {pid} on host host-0) of 3",
        ),
    ],
    ids=["twice", "out of range", "another size"],
)
def test_numbers_that_contradict_each_other_are_an_error_on_both_sides(endpoint, rank, size, sentence):
    first = Rank(1, 3, endpoint)
    leader = Rank(0, 3, endpoint)
    await_table(leader, first)
    texts = errors([Rank(rank, size, endpoint, "other"), leader, first])
    assert texts[0].startswith(sentence.format(pid=os.getpid()))
    assert set(texts) == {texts[0]}


def await_table(leader: Rank, other: Rank) -> None:
    """Wait until `other` waits for the table: both of its connections have been accepted."""
    while not other.is_in("_receive_table"):
        assert leader.is_alive()


def test_an_introduction_that_is_not_understood_is_an_error(endpoint):
    leader = Rank(0, 2, endpoint)
    dial(endpoint.addresses, KEY, {"purpose": "tea"}, time.monotonic() + DEADLINE).socket.close()
    (text,) = errors([leader])
    assert text.startswith("a process that knows the job key connected with rank 0 and said \"{'purpose': 'tea'}\"")


def test_rank_0_may_be_elsewhere_than_the_place():
    (text,) = errors([Rank(0, 2, RendezvousEndpoint((("203.0.113.7", 4000), ("no.such.host.invalid", 4000)), KEY))])
    assert text.startswith(
        "rank 0 on host host-0 can listen at none of 203.0.113.7:4000 (cannot assign requested address), "
        "no.such.host.invalid:4000 ("
    )
    assert HERE in text


def test_a_rank_that_is_lost_while_all_are_told_ends_it_for_all(join, endpoint, monkeypatch):
    """Ranks that have the table already get no further message, which they would not understand."""

    class Stubborn(server.Server):
        def _send_table(self, agreed: dict[str, int]) -> None:
            self._connections["control"][2].shutdown(socket.SHUT_WR)
            super()._send_table(agreed)

    monkeypatch.setattr(across_hosts, "Server", Stubborn)
    ranks = [Rank(rank, 4, endpoint) for rank in range(4)]
    for rank in ranks:
        rank.join(2 * DEADLINE)
    assert str(ranks[0].error).startswith(
        f"rank 2 (process {os.getpid()} on host host-2) cannot be told who is there: "
    )
    told = [rank for rank in ranks if rank.error is None]
    for rank in told:
        rendezvous = rank.end()
        rendezvous.control[0].settimeout(DEADLINE)
        assert rendezvous.control[0].recv(1) == b""
        rendezvous.close()
    assert ranks[2] not in told


def test_a_port_that_is_taken_is_said():
    with socket.create_server((HERE, 0)) as taken:
        (text,) = errors([Rank(0, 2, RendezvousEndpoint((taken.getsockname(),), KEY))])
    assert "address already in use" in text


def test_a_place_outside_the_network_is_said(endpoint):
    outside = RendezvousEndpoint((("127.0.0.2", endpoint.addresses[0][1]),), KEY)
    (text,) = errors([Rank(0, 2, outside, network="lo")])
    assert "not in the network that was chosen" in text


def test_a_network_that_is_not_here_is_an_error(endpoint):
    for rank in (0, 1):
        with pytest.raises(UsageError, match="'eth99' allows no interface"):
            Rank(rank, 2, endpoint, network="eth99").end()


def test_without_a_key_nobody_gathers(endpoint):
    for rank in (0, 1):
        with pytest.raises(BootstrapError, match="no key"):
            Rank(rank, 2, RendezvousEndpoint(endpoint.addresses)).end()


# Small things -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("10.0.0.1:40123", (("10.0.0.1", 40123),)),
        ("10.0.0.1:1, [fd00::1]:2", (("10.0.0.1", 1), ("fd00::1", 2))),
        ("alpha.local:65535", (("alpha.local", 65535),)),
    ],
)
def test_endpoints_are_parsed(text, addresses):
    assert parse_endpoints(text) == addresses


@pytest.mark.parametrize("text", ["", "alpha", "a:1,", "a:1,fd00::1:2"])
def test_parse_refuses(text):
    with pytest.raises(UsageError, match=r"is not an address and a port from 1 to 65535"):
        parse_endpoints(text)


def test_the_limit_of_open_files_is_raised_as_far_as_it_may():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        server._allow_files(150)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
        server._allow_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        server._allow_files(1 << 40)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
