"""Asking the agents of a job what their ranks do, and handing that on to the consumers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from distrun.runner.agent.observation import unpack_events
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.observation.clocks import Clocks
from distrun.runner.observation.consumer import Consumer, HearsEnding, JobEnd, Source
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tracing.reader import events, shifted, split_names

INTERVAL = 0.5
"""Seconds between two reports of an agent."""
_TICK = 0.2
_QUESTIONS, _QUESTIONS_EVERY = 8, 1.0
"""Questions for the time that are asked at once, and seconds between two times. The last has the shortest way there,
since the first has woken everybody who passes it on, and the answer to the first has the shortest way back."""
_EARLY_QUESTIONS = 15
"""Ticks at the beginning, in each of which they are asked: ranks have not done enough together yet."""


class Observation:
    """Hears agents' threads, and works on a thread of its own, so that neither ranks nor decisions wait for it."""

    def __init__(
        self, consumers: Sequence[Consumer], rank_of: Callable[[int], int], say: Callable[[str], None]
    ) -> None:
        """
        Args:
            consumers: are told, one after the other.
            rank_of: returns the rank that a process has at present.
            say: tells the user.
        """
        self._consumers = list(consumers)
        self._rank_of = rank_of
        self._say = say
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._agents: dict[str, AgentClient] = {}
        self._clocks = Clocks()
        self._names: dict[int, list[str]] = {}
        self._places: dict[int, tuple[AgentClient, int]] = {}  # by rank: its agent, and its number in frames
        self._stack_waiters: dict[int, list[Callable[[str], None]]] = {}
        self._ask_at = 0.0
        self._early_questions = _EARLY_QUESTIONS
        self._ending = JobEnd(0)
        self._thread = threading.Thread(target=self._work, name="distrun observation", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    # By other threads -------------------------------------------------------------------------------------------------

    def add(self, agent: AgentClient, is_remote: bool) -> None:
        """Ask an agent, whose ranks are about to start (the thread that decides)."""
        self._agents[agent.host] = agent
        self._clocks.add(agent.host, is_remote)
        if is_remote:
            self._ask(agent)
        agent.send(Frame(FrameKind.OBSERVE, payload=json.dumps({"interval": INTERVAL}).encode()))

    def release(self, agent: AgentClient) -> None:
        """Ask an agent for nothing any more."""
        agent.send(Frame(FrameKind.OBSERVE, payload=json.dumps({"interval": 0}).encode()))

    def join(self, consumer: Consumer) -> None:
        """Tell one more consumer, from now on."""
        self._queue.put(lambda: self._consumers.append(consumer))

    def leave(self, consumer: Consumer) -> None:
        """Tell a consumer nothing any more, not even that it is over."""
        self._queue.put(lambda: self._consumers.remove(consumer))

    def ask_stack(self, rank: int, answer: Callable[[str], None]) -> bool:
        """Ask a rank what its threads are doing; return whether there is such a rank."""
        agent, process = self._places.get(rank, (None, 0))
        if agent is None:
            return False
        self._queue.put(lambda: self._stack_asked(agent, process, answer))
        return True

    def abandon(self) -> None:
        """End without completing anything."""
        self._queue.put(self._consumers.clear)
        self.close(JobEnd(0))

    def hear(self, agent: AgentClient, frame: Frame) -> None:
        """Take what an agent has told (its thread)."""
        if frame.kind is FrameKind.CLOCK:  # at once: the time counts
            asked, theirs = map(int, frame.payload.split())
            self._clocks.answered(agent.host, asked, theirs, time.monotonic_ns())
            return
        if frame.kind is FrameKind.STACK:
            self._queue.put(lambda: self._stack_told(frame))
            return
        self._queue.put(lambda: self._take(agent.host, frame))

    def output(self, rank: int, data: bytes) -> None:
        """Take what a rank has written (an agent's thread)."""
        self._queue.put(lambda: self._tell(lambda consumer: consumer.output(rank, data)))

    def close(self, ending: JobEnd) -> None:
        """Have everything completed, and wait for that: all agents are gone (the thread that decides)."""
        self._ending = ending
        self._queue.put(None)
        if self._thread.ident is not None:  # a job that could not start has not begun to be observed
            self._thread.join()

    # By its own -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                task = self._queue.get(timeout=_TICK)
                if task is None:
                    break
                task()
            except Empty:
                pass
            self._look_after_clocks()
            self._tell(lambda consumer: consumer.tick(time.monotonic_ns()))
        self._tell(self._end)

    def _end(self, consumer: Consumer) -> None:
        if isinstance(consumer, HearsEnding):
            consumer.ended(self._ending)
        consumer.close(self._ending.status)

    def _look_after_clocks(self) -> None:
        if time.monotonic() < self._ask_at:
            return
        self._early_questions -= 1
        self._ask_at = time.monotonic() + (_TICK if self._early_questions > 0 else _QUESTIONS_EVERY)
        for host in self._clocks.remote:
            self._ask(self._agents[host])

    @staticmethod
    def _ask(agent: AgentClient) -> None:
        for _ in range(_QUESTIONS):
            agent.send(Frame(FrameKind.CLOCK))

    def _take(self, host: str, frame: Frame) -> None:
        if frame.kind is FrameKind.SAMPLE:
            sample = json.loads(frame.payload)
            clock = {"offset": self._clocks.offset(host), "error": self._clocks.error(host)}
            sample |= {"time": sample["time"] - clock["offset"], "clock": clock}
            self._tell(lambda consumer: consumer.sample(host, sample))
            return
        raw_names, records = unpack_events(frame.payload)
        names = self._names.setdefault(frame.process, [""])
        names += split_names(raw_names)
        source = Source(frame.process, self._rank_of(frame.process), host)
        self._places[source.rank] = self._agents[host], frame.process
        raw = list(events(records))
        self._clocks.learn(host, frame.process, raw, names)
        recorded = list(shifted(raw, self._clocks.offset(host)))
        self._tell(lambda consumer: consumer.events(source, recorded, names))

    def _stack_asked(self, agent: AgentClient, process: int, answer: Callable[[str], None]) -> None:
        self._stack_waiters.setdefault(process, []).append(answer)
        agent.send(Frame(FrameKind.STACK, process))

    def _stack_told(self, frame: Frame) -> None:
        text = f"rank {self._rank_of(frame.process)} {frame.payload.decode(errors='replace')}"
        for answer in self._stack_waiters.pop(frame.process, []):
            answer(text)

    def _tell(self, call: Callable[[Consumer], None]) -> None:
        for consumer in list(self._consumers):
            try:
                call(consumer)
            except Exception as error:  # whatever it is, the training goes on without being seen
                self._consumers.remove(consumer)
                self._say(f"{consumer.title} ends here: {error}")
