"""The simulators of data, start, failure and the control plane: time passes as their parameters say."""

from __future__ import annotations

import pytest

from benchmarks.scale import allreduce
from benchmarks.scale.failure import failure, keepalive_seconds
from benchmarks.scale.machine import PER_PACKET, Machine
from benchmarks.scale.simulator import Simulation, latencies
from benchmarks.scale.start import Cost, members, start, table
from benchmarks.scale.traces import KINDS
from distrun.runtime.backends.algorithms.choice import WHOLE

IDEAL = Machine(cores=1, wake=0.0, latency=1.0, rate=1e6, system_call=0.0, copying=1e18, memory=1e18)
FREE = Cost(connection=0.0, pack=0.0, unpack=0.0)


def on_the_wire(nbytes: int) -> int:
    return nbytes + PER_PACKET * -(-nbytes // allreduce.PACKET)


def test_two_hosts_take_the_latency_and_the_time_of_their_bytes():
    assert allreduce.seconds(WHOLE, 2, 4000, 1, IDEAL) == pytest.approx(1 + on_the_wire(4000) / 1e6)
    # Two halves, one after the other.
    assert allreduce.seconds("direct", 2, 4000, 1, IDEAL) == pytest.approx(2 * (1 + on_the_wire(2000) / 1e6))


@pytest.mark.parametrize("name", ["direct", "ring", "halving-doubling"])
@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_hosts_send_the_least_bytes(name, hosts):
    traces = allreduce.traces_of(name, hosts, 1 << 20, 1)
    assert {trace.nbytes for trace in traces.values()} == {2 * (hosts - 1) * (1 << 20) // hosts}


def test_partners_and_messages_of_algorithms():
    traces = {name: allreduce.traces_of(name, 8, 8000, 1)[0] for name in KINDS}
    assert {name: len(trace.partners) for name, trace in traces.items()} == {
        "direct": 7,
        "ring": 1,
        "halving-doubling": 3,
        "tree": 2,  # the root
    }
    assert [traces[name].messages for name in ("direct", "ring", "halving-doubling")] == [14, 14, 6]


@pytest.mark.parametrize("name", [WHOLE, "direct", "ring", "halving-doubling"])
def test_one_host_stands_for_all_where_they_do_the_same(name):
    machine = Machine(cores=1, wake=2e-5, latency=2e-5, rate=1e9, system_call=5e-6)
    elements = 1 << 18
    traces = {own: allreduce.trace(name, 8, elements, 4, own) for own in range(8)}
    all_hosts = allreduce.replay(traces, machine, dict.fromkeys(traces, 1e9))
    one_host = allreduce.replay({0: traces[0]}, machine, {0: 1e9}, allreduce.mirror(name, 8))
    assert one_host == pytest.approx(all_hosts, rel=1e-3)


def test_messages_queue_for_the_link_of_their_receiver():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e9, system_call=0.0)
    nbytes = 1 << 16
    traces = {
        0: allreduce.Trace([("wait", [(1, 1, nbytes), (2, 1, nbytes)], 0)]),
        1: allreduce.Trace([("send", 0, nbytes)]),
        2: allreduce.Trace([("send", 0, nbytes)]),
    }
    took = allreduce.replay(traces, machine, dict.fromkeys(traces, 1e6))
    assert took == pytest.approx(2 * on_the_wire(nbytes) / 1e6, rel=0.01)


def test_a_slow_host_costs_a_tree_less():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e9, system_call=0.0)
    direct, tree = (allreduce.seconds_with_slow(name, 8, 32 << 20, 1, machine, 10) for name in ("direct", "tree"))
    assert direct == pytest.approx(2 * 7 / 8 * (32 << 20) / 1e8, rel=0.2)
    assert tree < 0.7 * direct


def test_rank_0_takes_its_time_for_each_connection():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e12, system_call=0.0)
    cost = Cost(connection=0.1, pack=3.0, unpack=4.0)
    by_rank = start(3, 4, machine, cost, is_led=False, limit=100.0)
    assert (by_rank.made, by_rank.dropped) == (2 * 11, 0)
    assert by_rank.met == pytest.approx(2 * 11 * 0.1, rel=0.2)
    assert by_rank.told == pytest.approx(by_rank.met + 7, abs=0.01)
    by_host = start(3, 4, machine, cost, is_led=True, limit=100.0)
    assert by_host.made == 2 * 2
    assert by_host.met < by_rank.met / 3


def test_clients_that_are_dropped_come_again():
    machine = Machine(cores=1, wake=0.0, latency=1e-3, rate=1e12, system_call=0.0)
    crowded = start(10, 8, machine, Cost(1e-3, 0.0, 0.0), is_led=False, limit=100.0, most=4)
    assert crowded.dropped > 0
    assert crowded.made == 2 * 79


def test_a_start_may_take_too_long():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e12, system_call=0.0)
    slow = start(10, 8, machine, Cost(1.0, 0.0, 0.0), is_led=False, limit=10.0)
    assert slow.told == float("inf")
    assert slow.made < 2 * 79


def test_the_table_takes_the_link_of_rank_0():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1000.0, system_call=0.0)
    started = start(2, 4, machine, FREE, is_led=False, limit=10.0)
    assert started.nbytes == len(table(members(2, 4)))
    assert started.told - started.met == pytest.approx(7 * started.nbytes / 1000, rel=0.01)


def test_all_ranks_hear_of_a_host_that_fails():
    machine = Machine(cores=1, wake=0.0, latency=1.0, rate=1e9, system_call=0.0)
    without_tree = failure(4, 2, 1, machine, is_silent=False)
    assert (without_tree.first, without_tree.last, without_tree.directly) == (1.0, 2.0, 1)
    # Host 7 is below host 3, and that below host 1, which is below rank 0: so far is host 6 on the other side.
    in_tree = failure(8, 2, 7, machine, is_silent=False, fan_out=2)
    assert (in_tree.first, in_tree.last, in_tree.directly) == (1.0, 5.0, 1)
    # Host 1 has rank 0 above it, and two hosts below it.
    assert failure(8, 2, 1, machine, is_silent=False, fan_out=2).directly == 3


def test_a_silent_host_is_noticed_by_keepalives():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e9, system_call=0.0)
    assert failure(2, 1, 1, machine, is_silent=True).last == keepalive_seconds()[1]
    assert keepalive_seconds(may_be_unread=True) == (15.0, 16.0)
    assert keepalive_seconds() == (16.0, 17.0)


# The control plane ----------------------------------------------------------------------------------------------------

HOSTS = tuple((2 * host, 2 * host + 1) for host in range(5))


def test_all_ranks_get_every_decision_and_links_take_their_time():
    slow = Simulation(HOSTS, 2, Machine(cores=2, wake=0.0, latency=10.0, rate=1e9, system_call=0.0))
    took = list(latencies(slow, 3))
    # Twice the depth of the tree, up and down, and what the code takes here.
    assert all(40.0 <= seconds < 41.0 for seconds in took)
    assert max(rank.peers for rank in slow.ranks.values()) == 3
    assert {rank.messages for rank in slow.ranks.values() if rank.number % 2} == {0}


def test_messages_queue_for_the_wire():
    slow_link = Simulation(HOSTS, 4, Machine(cores=2, wake=0.0, latency=0.0, rate=100.0, system_call=0.0))
    nbytes = slow_link.operation(slow_link.requests[0])
    assert nbytes > 4 * 66 / 100  # the packets alone of the four that rank 0 sends


def test_ranks_share_the_cores_of_a_machine():
    machine = Machine(cores=1, wake=0.0, latency=0.0, rate=1e12, system_call=1.0)
    apart, together = Simulation(HOSTS, 4, machine), Simulation(HOSTS, 4, machine)
    together.share_cores()
    for simulation in (apart, together):
        simulation.operation(simulation.requests[0])
    alone, shared = (simulation.operation(simulation.requests[0]) for simulation in (apart, together))
    assert alone == pytest.approx(1 + 4 + 4 + 1, abs=0.5)  # sending up, receiving four, sending four, receiving
    assert shared > alone + 3
