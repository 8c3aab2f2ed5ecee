"""Planning an elastic job, whose hosts and ranks come and go."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from distrun.contract.launch import LaunchContract
from distrun.errors import UsageError
from distrun.host.interfaces import Interface
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.planning.elastic import ElasticPlanner, provisional
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.planning.variables.ranks import RankLocation
from distrun.runner.protocol.handshake import HostError, HostInfo

LAUNCH = LaunchContext({"SLURM_RESTART_COUNT": "1"}, "/", "0" * 32, "1" * 64, 4711, cores=8, slots=8)


def info(number: int, *interfaces: Interface) -> HostInfo:
    own = interfaces or (Interface("lan", f"10.0.0.{number}", 24),)
    return HostInfo("1", "3", 1, 80, "", own, 90 + number, tuple(range(81, 88)), f"machine {number}")


def planner(*hosts: str, slots: int = 4, **request: object) -> ElasticPlanner:
    made = ElasticPlanner(LaunchRequest(("python", "x.py"), **request), LAUNCH, ElasticOptions(2, 1, 8))
    for number, host in enumerate(hosts):
        made.part(Host(host, slots), None if host == "here" else Route(host, host))
        made.add(host, info(number))
    return made


def contracts(world) -> list[LaunchContract]:
    return [LaunchContract.from_environ(environ) for environ in world.environs]


def test_on_one_host_nobody_needs_the_network():
    first, second = contracts(planner("here").world([RankLocation("here", 0), RankLocation("here", 2)], 1))
    assert (first.master_addr, first.rendezvous, first.local_size) == ("127.0.0.1", "", 2)
    assert (second.local_rank, second.slot, second.restart) == (1, 2, 1)


def test_each_generation_takes_the_next_port_for_other_frameworks():
    made = planner("here")
    ports = [contracts(made.world([RankLocation("here", 0)], number))[0].master_port for number in range(1, 10)]
    assert len(set(ports[:8])) == 8
    assert ports[8] == ports[0]


def test_on_this_machine_a_port_is_looked_for_when_it_is_needed():
    made = ElasticPlanner(LaunchRequest(("x",)), LAUNCH, ElasticOptions(1, 1, 1), iter((7, 8)).__next__)
    made.part(Host("here", 1), None)
    made.add("here", info(0))
    assert [contracts(made.world([RankLocation("here", 0)], number))[0].master_port for number in (1, 2)] == [7, 8]


def test_ranks_meet_at_the_host_where_rank_0_is_now():
    made = planner("here", "a", "b")
    before = contracts(made.world([RankLocation("here", 0), RankLocation("a", 0)], 1))
    assert {contract.rendezvous for contract in before} == {"10.0.0.0:90"}
    after = contracts(made.world([RankLocation("b", 0), RankLocation("a", 0)], 2))
    assert {(c.rendezvous, c.master_addr, c.generation) for c in after} == {("10.0.0.2:92", "10.0.0.2", 2)}


def test_a_newcomers_place_is_not_firm():
    (environ,) = planner("here").world([RankLocation("here", 1)], 5).environs
    likely = LaunchContract.from_environ(provisional(environ))
    assert likely == replace(LaunchContract.from_environ(environ), generation=0)


def test_a_host_has_room_for_its_slots_and_for_no_more_than_the_job_may_have():
    made = planner()
    assert made.part(Host("here", 4), None).room == 4
    part = made.part(Host("a", 100), Route("a", "a"))
    assert (part.room, part.ranks, part.remote) == (8, [], True)
    assert made.part(Host("here", 4), None).environ["OMP_NUM_THREADS"] == "2"


def test_cpus_are_shared_by_slot():
    plan = planner("here").process(17, RankLocation("here", 3), {}, {})
    assert (plan.rank, plan.local_rank, plan.local_size) == (17, 3, 4)


def test_a_machine_is_not_used_under_two_names():
    made = planner("here", "a")
    with pytest.raises(HostError, match="the same machine as a"):
        made.add("b", info(1))
    made.remove("a")
    made.add("b", info(1))


def test_a_host_that_is_not_in_the_network_that_was_asked_for_is_refused():
    made = planner(network="10.0.0.0/24")
    made.add("a", info(1))
    with pytest.raises(HostError, match="192"):
        made.add("b", info(2, Interface("eth0", "192.168.0.1", 24)))


LOOPBACK_ONLY = replace(info(1), addresses=())


def test_a_host_that_others_cannot_reach_is_refused_unless_it_is_alone():
    made = planner()
    with pytest.raises(
        HostError, match=r"^it has no address that other hosts can reach, only loopback: see `ip address`"
    ):
        made.add("a", LOOPBACK_ONLY)
    made.part(Host("a", 4), Route("a", "a"))
    made.add("a", LOOPBACK_ONLY, has_others=False)
    with pytest.raises(HostError, match="host a, with whose ranks those of this host are to meet, has no address that"):
        made.add("b", info(2), has_others=True)
    assert contracts(made.world([RankLocation("a", 0)], 1))[0].master_addr == "127.0.0.1"
    made.remove("a")
    made.add("b", info(2))


def test_listed_gpus_are_for_as_many_ranks():
    made = planner()
    assert made.part(Host("here", 2, gpus=("0", "3")), None).environ["CUDA_VISIBLE_DEVICES"] == "0,3"
    with pytest.raises(UsageError, match="more than its 1 GPU"):
        made.part(Host("here", 2, gpus=("0",)), None)


def test_tf_config_lists_all_ranks_with_ports_of_their_slots():
    made = planner("here", "a", slots=2, tf_config=True)
    world = made.world([RankLocation("here", 1), RankLocation("a", 0)], 1)
    told = [json.loads(environ["TF_CONFIG"]) for environ in world.environs]
    assert told[0]["cluster"]["worker"] == ["10.0.0.0:82", "10.0.0.1:81"]
    assert [config["task"]["index"] for config in told] == [0, 1]
