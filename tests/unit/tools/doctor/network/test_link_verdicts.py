"""The doctor's judgement of the network between two hosts."""

from dataclasses import replace

import pytest

from distrun.tools.doctor.network import verdicts
from distrun.tools.doctor.network.packet_sizes import PacketSizes, search
from distrun.tools.doctor.network.transfers import Traffic
from distrun.tools.doctor.report import LinkReport, Status


def measured(rate, round_trip=1e-4):
    return verdicts.link(LinkReport("a", "b", Status.OK, "10.0.0.1", "10.0.0.2", round_trip, rate), hosts=4)


def test_a_fast_link_is_told_in_gigabits():
    link = measured(1.25e9)
    assert (link.status, link.text) == (Status.OK, "10 Gbit/s, round trip 100 us")


def test_a_gigabit_is_too_little_and_the_time_of_an_allreduce_is_told():
    link = measured(1e9 / 8)
    assert link.status is Status.WARNING
    # 2 (n - 1) / n of 100 MB over 125 MB/s
    assert "1 Gbit/s, round trip 100 us: too little for training" in link.text
    assert "100 MB would take 1.2 s" in link.text
    assert "--network" in link.remedy
    assert "--wire-dtype bfloat16" in link.remedy
    assert measured(1.01e9 / 8).status is Status.OK


def test_a_pair_without_a_connection_names_both_addresses():
    tried = [("10.0.0.1", "no answer within 3 s"), ("fd00::1", "connection refused")]
    link = verdicts.unreachable("b", "a", tried, ["10.0.0.2"])
    assert link.status is Status.FAILED
    assert link.text == (
        "b (10.0.0.2) cannot connect to a at 10.0.0.1 (IPv4: no answer within 3 s), nor at fd00::1 (IPv6: connection "
        "refused)"
    )
    assert (link.source_address, link.target_address) == ("10.0.0.2", "10.0.0.1")
    assert "--network" in link.remedy
    assert "no address" in verdicts.unreachable("b", "a", [], []).text
    link = verdicts.unreachable("b", "a", tried, ["10.0.0.2"], is_one_way=True)
    assert link.text.endswith("though a can connect to b: new connections are dropped in this direction only")


def test_a_family_that_is_closed_is_a_warning_of_a_link_that_works():
    link = LinkReport("b", "a", Status.OK, "fd00::2", "fd00::1", 1e-4, 1e9, text="8 Gbit/s")
    assert verdicts.with_closed(link, []) == link
    warned = verdicts.with_closed(link, [("10.0.0.1", "no answer within 4 s")])
    assert warned.status is Status.WARNING
    assert warned.text == "8 Gbit/s; but b cannot connect to a at 10.0.0.1 (IPv4: no answer within 4 s)"
    assert warned.remedy.startswith("open the firewall of a for IPv4 too")
    assert verdicts.with_closed(replace(link, status=Status.FAILED), [("10.0.0.1", "x")]).status is Status.FAILED


def lossy(steady, rate=1e6):
    link = LinkReport("a", "b", Status.OK, "10.0.0.1", "10.0.0.2", 1e-4, rate, packets_sent=1000, packets_lost=60)
    return verdicts.link(link, hosts=2, steady=steady)


def test_a_link_that_loses_packets_is_told_with_their_share_and_not_called_slow():
    link = lossy(Traffic(1e6, 1200, 60))
    assert link.status is Status.WARNING
    assert link.text == (
        "0.008 Gbit/s, round trip 100 us: packets are lost on the way, 5 % of them had to be sent again (60 of 1200)"
    )
    assert (link.packets_sent, link.packets_lost) == (1200, 60)
    assert "ip -s link" in link.remedy
    assert "faster" not in link.remedy
    assert lossy(Traffic(1e9, 9000, 90), rate=1e9).status is Status.WARNING  # a fast one, too


def test_a_link_that_is_only_overrun_loses_nothing_at_a_steady_pace_and_is_slow():
    link = lossy(Traffic(1e6, 1200, 2))
    assert "too little for training" in link.text
    assert "lost" not in link.text


@pytest.mark.parametrize(
    ("transfer", "pace"),
    [
        (Traffic(1e9, 100_000, 0), 0),
        (Traffic(1e9, 100_000, 200), 0),  # 0.2 %
        (Traffic(1e9, 100, 2), 0),  # no more than bad luck
        (Traffic(1e9, 100_000, 5000), 12_500_000),
        (Traffic(8e6, 1000, 50), 2_000_000),
        (Traffic(1000.0, 20, 5), 1_000_000),
        (Traffic(None, 20, 5), 1_000_000),
        (Traffic(1e9, 0, 0), 0),  # an old kernel does not tell
    ],
)
def test_where_packets_were_lost_a_quarter_of_what_went_through_is_tried(transfer, pace):
    assert verdicts.steady_pace(transfer) == pace


def test_a_link_that_loses_large_packets_is_told_with_the_size_that_passes_and_what_to_do():
    link = LinkReport("a", "b", Status.OK, "10.0.0.1", "10.0.0.2", 1e-4, None)
    found = verdicts.link(link, hosts=2, sizes=PacketSizes(1500, 1399), interface="eth1")
    assert (found.status, found.largest_packet) == (Status.FAILED, 1399)
    assert found.text == (
        "10.0.0.2 can be connected to, but no data arrives from 10.0.0.1: large packets are lost on the way, those of "
        "more than 1399 bytes of up to 1500 (an MTU black hole)"
    )
    assert "'ip link set dev eth1 mtu 1399' there" in found.remedy


@pytest.mark.parametrize("sizes", [None, PacketSizes(1500, 1500), PacketSizes(1500, 0)])
def test_a_link_on_which_nothing_arrives_for_another_reason_than_size_loses_packets(sizes):
    link = LinkReport("a", "b", Status.OK, "10.0.0.1", "10.0.0.2", 1e-4, None)
    found = verdicts.link(link, hosts=2, sizes=sizes)
    assert found.status is Status.FAILED
    assert ("most packets" in found.text) == (sizes is None or sizes.passing > 0)
    assert "packets are lost on the way" in found.text
    assert "ip -s link" in found.remedy
    assert "MTU" not in found.text + found.remedy
    assert found.largest_packet is None


class Path:
    """A path on which packets with at most `limit` bytes of data pass."""

    def __init__(self, limit, lost_at=()):
        self.limit = limit
        self.series = 0
        self._lost_at = dict(lost_at)

    def passing(self, sizes):
        assert list(sizes) == sorted(sizes)
        self.series += 1
        chance = self._lost_at.get(self.series, len(sizes))
        return min(chance, sum(size <= self.limit for size in sizes))


@pytest.mark.parametrize("most", [1448, 8948, 65483])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.999])
def test_the_largest_packet_that_passes_is_found_in_two_series(most, share):
    path = Path(int(most * share))
    assert path.limit - most / 16 / 128 - 1 <= search(path.passing, most) <= path.limit
    assert path.series == 2


@pytest.mark.parametrize(
    ("limit", "found", "series"),
    [
        pytest.param(1348, 1348, 2, id="an MTU of 1400, to the byte"),
        pytest.param(1448, 1448, 1, id="all pass"),
        pytest.param(-1, 0, 2, id="nothing passes"),
    ],
)
def test_the_largest_packet_may_be_any(limit, found, series):
    path = Path(limit)
    assert search(path.passing, 1448) == found
    assert path.series == series


@pytest.mark.parametrize("lost_at", [{1: 3}, {1: 3, 2: 0}])
def test_packets_that_are_lost_by_chance_are_not_taken_for_large_ones(lost_at):
    assert search(Path(1448, lost_at).passing, 1448) is None
