"""Planning the ranks of trials."""

from distrun.contract.launch import LaunchContract
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostInfo
from distrun.tools.sweep.planning import TrialPlanner
from distrun.tools.sweep.policy.trials import Member, Trial

CONTEXT = LaunchContext({}, "/", "0" * 32, "1" * 64, 4711, cores=8, slots=8)


def test_a_trial_takes_other_ports_than_the_one_before_it_and_those_beside_it():
    planner = TrialPlanner(LaunchRequest(("true",)), CONTEXT, is_pruned=False)
    part = planner.part(Host("a", 2), Route("a", "a"))
    planner.add("a", HostInfo("1", "3", 1, port=80, rendezvous=90, ports=tuple(range(100, 100 + part.ports))), False)
    found = {}
    for number in range(6):  # trials take turns on two slots
        trial = Trial(number, {})
        trial.begin((Member(0, number, "a", number % 2),), 0.0)
        (plan,) = planner.trial(trial, ["true"])
        found[number] = LaunchContract.from_environ(plan.environ).master_port
    assert len(set(list(found.values())[:4])) == 4
    assert all(found[number] == found[number - 4] for number in (4, 5))
