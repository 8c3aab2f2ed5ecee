"""The frames and messages that start and activate processes of an elastic job, and assign ranks to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from distrun.contract.elastic.messages import Activate, Assignment, Message, Preload, Prepare, encode_pieces
from distrun.runner.decisions.elastic.actions import Generation, Member
from distrun.runner.job.agents import Agents
from distrun.runner.planning.elastic import ElasticPlanner, World, provisional
from distrun.runner.planning.plan import RankPlan
from distrun.runner.planning.variables.ranks import RankLocation
from distrun.runner.protocol.frames import Frame, FrameKind


class Processes:
    """Sends agents the frames about processes. A process keeps its number while its rank changes."""

    def __init__(self, agents: Agents, planner: ElasticPlanner) -> None:
        self.members: tuple[Member, ...] = ()
        """The members of the present generation."""
        self._agents = agents
        self._planner = planner
        self._ranks: dict[int, int] = {}  # process -> its present rank, or the rank that it is likely to get
        self._hosts: dict[int, str] = {}  # process -> host
        self._spares: set[int] = set()
        self._world: tuple[Generation, World] | None = None

    def rank(self, process: int) -> int:
        """Return the rank that a process has, will have or has had. A process without one has its number."""
        return self._ranks.get(process, process)

    def is_spare(self, process: int) -> bool:
        """Whether a process has not been activated yet."""
        return process in self._spares

    @property
    def known(self) -> set[int]:
        """All processes that were started and not forgotten since."""
        return set(self._hosts)

    def forget(self, process: int) -> None:
        """Forget a process that is dead."""
        self._hosts.pop(process, None)
        self._ranks.pop(process, None)
        self._spares.discard(process)

    def begin(self, generation: Generation, start: Collection[int]) -> None:
        """Begin a generation.

        Args:
            generation: its number and its members.
            start: the members to start or activate. The others run already, and get an `Assignment`.
        """
        environs = self._world_of(generation).environs
        self.members = generation.members
        own = {member.process: environs[member.rank] for member in generation.members}
        self._start(generation, {process: own[process] for process in own if process in start})
        self._ranks |= {member.process: member.rank for member in generation.members}
        for process, environ in own.items():
            if process not in start:
                self._tell(process, Assignment(generation.number, environ, generation.reason))

    def start_early(self, expected: Generation, newcomers: Collection[int]) -> None:
        """Start or activate newcomers for a likely generation. They get an `Assignment` when one begins."""
        environs = self._world_of(expected).environs
        early = [member for member in expected.members if member.process in newcomers]
        self._start(expected, {member.process: provisional(environs[member.rank]) for member in early})

    def start_spares(self, hosts: Mapping[int, str], modules: Iterable[str]) -> None:
        """Start spares, which import modules until they are activated."""
        defaults = {} if self._world is None else self._world[1].defaults
        for process, host in hosts.items():
            self._spares.add(process)
            self._send_start(host, self._planner.spare(process, defaults.get(host, {})))
            self._tell(process, Preload(list(modules)))

    def prepare(self, generation: int, members: Iterable[int], reason: str) -> None:
        """Ask the members of a generation to leave it at the next step boundary."""
        for process in members:
            self._tell(process, Prepare(generation, reason))

    def end(self, processes: Iterable[int], grace: float) -> None:
        """End processes with all that they have started, by SIGKILL after `grace` seconds."""
        for process in processes:
            self._send(Frame.number(FrameKind.END, grace, process))

    def _start(self, generation: Generation, environs: Mapping[int, dict[str, str]]) -> None:
        """Start or activate the members of a generation that are in `environs`, with their variables."""
        world = self._world_of(generation)
        for member in generation.members:
            process, host = member.process, member.host
            if process not in environs:
                continue
            self._ranks[process] = member.rank
            if process in self._spares:
                self._spares.discard(process)
                self._tell(process, Activate(environs[process]))
                continue
            place, defaults = RankLocation(host, member.slot), world.defaults.get(host, {})
            self._send_start(host, self._planner.process(process, place, environs[process], defaults))

    def _world_of(self, generation: Generation) -> World:
        """Return the world of a generation. It is kept, since it is needed several times in a row."""
        if self._world is None or self._world[0] != generation:
            places = [RankLocation(member.host, member.slot) for member in generation.members]
            self._world = generation, self._planner.world(places, generation.number)
        return self._world[1]

    def _send_start(self, host: str, plan: RankPlan) -> None:
        self._hosts[plan.rank] = host
        self._send(Frame(FrameKind.START, plan.rank, plan.to_json()))

    def _tell(self, process: int, message: Message) -> None:
        for piece in encode_pieces(message):
            self._send(Frame(FrameKind.CONTROL, process, piece))

    def _send(self, frame: Frame) -> None:
        """Send a frame to the agent of its process, if there is one."""
        if (agent := self._agents.get(self._hosts.get(frame.process, ""))) is not None:
            agent.send(frame)
