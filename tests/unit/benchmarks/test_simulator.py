"""The simulator of the control plane: time passes as its parameters say."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.scale.simulator import Machine, Simulation, latencies

HOSTS = tuple((2 * host, 2 * host + 1) for host in range(5))


def test_all_ranks_get_every_decision_and_links_take_their_time():
    slow = Simulation(HOSTS, 2, Machine(cores=2, wake=0.0, latency=10.0, rate=1e9, system_call=0.0))
    took = list(latencies(slow, 3))
    # Twice the depth of the tree, up and down, and what the code takes here.
    assert all(40.0 <= seconds < 41.0 for seconds in took)
    assert max(rank.peers for rank in slow.ranks.values()) == 3
    assert {rank.messages for rank in slow.ranks.values() if rank.number % 2} == {0}


def test_messages_queue_for_the_wire():
    narrow = Simulation(HOSTS, 4, Machine(cores=2, wake=0.0, latency=0.0, rate=100.0, system_call=0.0))
    nbytes = narrow.operation(narrow.requests[0])
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
