"""Elastic jobs under any history: deaths, lost hosts, hosts found, messages in any order and at any time."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_cluster import ENDED, Cluster

from distrun.contract.elastic.messages import Ending
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.policy import ElasticPolicy
from distrun.runner.decisions.events import HostsFound
from distrun.runner.decisions.policy import State

HOSTS = ("a", "b", "c")


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, the cluster's checks hold, and the job ends."""

    @initialize(
        slots=st.dictionaries(st.sampled_from(HOSTS), st.integers(1, 3), min_size=1),
        sizes=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)).map(sorted),
        spares=st.integers(0, 1),
        max_restarts=st.integers(0, 12),
        discovers=st.booleans(),
        is_elastic=st.booleans(),
        cooldown=st.sampled_from([(10.0, 3600.0), (0.0, 0.0)]),
    )
    def begin(self, slots, sizes, spares, max_restarts, discovers, is_elastic, cooldown):
        options = ElasticOptions(
            np=sizes[1],
            min_np=sizes[0],
            max_np=sizes[2],
            spares=spares,
            max_restarts=max_restarts,
            discovers=discovers,
            cooldown=cooldown,
        )
        self.cluster = Cluster(ElasticPolicy(slots, options, 5.0, 60.0, 0.0), options, is_elastic)
        self.cluster.step()

    @rule(index=st.integers(0, 50))
    def somebody_is_heard(self, index):
        self.cluster.hear(index)

    @rule()
    def all_are_heard(self):
        for _ in range(300):
            if not self.cluster.hear():
                break

    @rule(seconds=st.sampled_from([0.001, 0.02, 1.0, 6.0, 70.0]))
    def time_passes(self, seconds):
        self.cluster.wait(seconds)

    @precondition(lambda self: self.cluster.alive())
    @rule(index=st.integers(0, 20), code=st.sampled_from([-9, 1, 1, 0]), lost_peer=st.booleans())
    def a_process_dies(self, index, code, lost_peer):
        alive = self.cluster.alive()
        self.cluster.die(alive[index % len(alive)], code, lost_peer and code == 1)
        self.cluster.live()

    @rule(index=st.integers(0, 20))
    def a_script_raises_an_exception(self, index):
        members = [process for process in self.cluster.alive() if process.joined > process.left]
        if members:
            self.cluster.fail(members[index % len(members)])
            self.cluster.live()

    @rule(index=st.integers(0, 20))
    def a_process_leaves(self, index):
        members = [process for process in self.cluster.alive() if process.joined > process.left]
        if members and self.cluster.is_elastic:
            self.cluster.leave(members[index % len(members)], "lost its peer rank 1")
            self.cluster.live()

    @rule(index=st.integers(0, 20))
    def a_script_comes_to_its_end(self, index):
        members = [process for process in self.cluster.alive() if process.joined]
        if members:
            self.cluster.tell(members[index % len(members)].number, Ending())

    @rule(host=st.sampled_from(HOSTS), is_certain=st.booleans())
    def a_host_is_lost(self, host, is_certain):
        self.cluster.lose(host, is_certain)
        self.cluster.live()

    @rule(host=st.sampled_from(HOSTS))
    def a_host_comes_back(self, host):
        self.cluster.down.discard(host)

    @rule(slots=st.dictionaries(st.sampled_from(HOSTS), st.integers(1, 3)))
    def hosts_are_found(self, slots):
        if self.cluster.options.discovers:
            self.cluster.step(HostsFound(slots))

    @rule()
    def the_script_ends(self):
        generation = self.cluster.generations[-1] if self.cluster.generations else None
        if generation and all(
            self.cluster.processes[m.process].joined == generation.number for m in generation.members
        ):
            self.cluster.finish()

    @invariant()
    def it_knows_when_to_look_again(self):
        """A job that waits for capacity has a deadline; any other waits for events that come."""
        if hasattr(self, "cluster") and self.cluster.policy.state in (
            State.REGROUPING,
            State.SETTLING,
            State.CONNECTING,
        ):
            assert self.cluster.policy.deadline is not None

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        cluster.calm_down()
        if cluster.policy.state not in ENDED:
            assert cluster.policy.state is State.RUNNING
            assert cluster.has_joined()
            cluster.finish()
            cluster.calm_down()
        assert cluster.policy.state is State.OVER
        assert not cluster.alive()


AnyHistory.TestCase.settings = settings(stateful_step_count=60)
test_any_history = AnyHistory.TestCase
