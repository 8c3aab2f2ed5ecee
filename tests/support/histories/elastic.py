"""Histories of elastic jobs: events are told to the policy one by one, with the time, and its actions looked at."""

from distrun.contract.elastic.messages import Ending, Enrolled, Finished, Joined, Waiting
from distrun.runner.decisions.elastic.actions import BeginGeneration, Say
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.policy import ElasticPolicy
from distrun.runner.decisions.events import HostReady, ProcessSaid, RankExited, RankStarted
from distrun.runner.protocol.exits import RankExit

GRACE = 5.0
START_TIMEOUT = 60.0


class History:
    """One job. Hosts have names of one letter: `a2b1` are host a with two slots and b with one."""

    def __init__(self, hosts, np, min_np=None, max_np=None, **options):
        slots = {hosts[i]: int(hosts[i + 1]) for i in range(0, len(hosts), 2)}
        limits = ElasticOptions(np, np if min_np is None else min_np, max_np or np, **options)
        self.policy = ElasticPolicy(slots, limits, GRACE, START_TIMEOUT, 0.0)
        self.now = 0.0
        self.generation = None
        self.said = []

    def at(self, now):
        """Let the time pass, and return what is to be done then."""
        self.now = now
        return self._kept(self.policy.tick(now))

    def hear(self, event, now=None):
        """Return what is to be done after an event, which comes now or at another time."""
        self.now = self.now if now is None else now
        return self._kept([*self.policy.handle(event, self.now), *self.policy.tick(self.now)])

    def _kept(self, actions):
        for action in actions:
            if isinstance(action, BeginGeneration):
                self.generation = action.generation
        self.said += [action.text for action in actions if isinstance(action, Say)]
        return [action for action in actions if not isinstance(action, Say)]

    # --- what processes do

    def exit(self, process, code, lost_peer=False, now=None):
        return self.hear(RankExited(process, RankExit(code), lost_peer), now)

    def kill(self, *processes, now=None):
        return [action for process in processes for action in self.exit(process, -9, now=now)]

    def arrive(self, *processes, now=None):
        """Newcomers have come to where they wait."""
        events = [(RankStarted(process, 100 + process), ProcessSaid(process, Waiting(0))) for process in processes]
        return [action for pair in events for event in pair for action in self.hear(event, now)]

    def leave(self, *processes, reason="lost rank 0", now=None):
        events = [ProcessSaid(process, Waiting(self.generation.number, reason)) for process in processes]
        return [action for event in events for action in self.hear(event, now)]

    def raise_error(self, process, site="train.py:7 in train", step=3):
        """The script of a process has raised an exception; the process has yet to exit."""
        return self.hear(ProcessSaid(process, Ending("ValueError: no more data", site, step)))

    def finish(self, process):
        return self.hear(ProcessSaid(process, Finished()))

    def meet(self, enrolled=True):
        """All ranks of the generation meet, and enrol if they are to; returns what is to be done then."""
        actions = []
        for process in self.processes:
            actions += self.hear(RankStarted(process, 100 + process))
            actions += self.hear(ProcessSaid(process, Joined(self.generation.number)))
            if enrolled:
                actions += self.hear(ProcessSaid(process, Enrolled(["torch"])))
        return actions

    # --- what there is

    @property
    def processes(self):
        """The processes of the generation, in rank order."""
        return [member.process for member in self.generation.members]

    @property
    def places(self):
        """Where they are: `a0 a1 b0`."""
        return " ".join(f"{member.host}{member.slot}" for member in self.generation.members)

    def begun(self, actions):
        """Return the processes of the generation that these actions begin, in rank order; it is all they do."""
        (action,) = actions
        assert isinstance(action, BeginGeneration)
        return [member.process for member in action.generation.members]


def connecting(hosts="a4", np=4, **options):
    """Return a job that has begun to connect to its hosts."""
    job = History(hosts, np, **options)
    job.at(0.0)
    return job


def ready(hosts, np, **options):
    """Return a job whose hosts have just become ready, so that its first generation begins if they are enough."""
    job = History(hosts, np, **options)
    (connect,) = job.at(0.0)
    for host in sorted(connect.hosts):
        job.hear(HostReady(host))
    return job


def running(hosts="a4", np=4, enrolled=True, **options):
    """Return a job whose first generation has met."""
    job = ready(hosts, np, **options)
    assert job.generation is not None
    job.meet(enrolled)
    return job
