"""Requesting the events and usage of ranks from a job's agents, and passing them to consumers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from distrun.runner.agent.observation import unpack_events
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.observation.clocks import Clocks
from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tracing.reader import events, shifted, split_names

INTERVAL = 0.5
"""Seconds between two reports of an agent."""
_TICK = 0.2
_QUESTIONS, _QUESTIONS_EVERY = 8, 1.0
"""The number of clock requests per burst, and the seconds between two bursts. In a burst, the last request travels
fastest, as the first has woken all processes on the way, and the reply to the first travels back fastest.
"""
_EARLY_QUESTIONS = 15
"""Ticks at the beginning with a burst each: the ranks have not done enough collective operations yet."""


class Observation:
    """Takes frames from the agents' threads, and works in its own thread, so that neither ranks nor the job's thread
    wait.
    """

    def __init__(
        self, consumers: Sequence[Consumer], rank_of: Callable[[int], int], say: Callable[[str], None]
    ) -> None:
        """Args: `rank_of` returns the current rank of a process, and `say` prints a line for the user."""
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
        """Start the thread."""
        self._thread.start()

    # Called by other threads ------------------------------------------------------------------------------------------

    def add(self, agent: AgentClient, is_remote: bool) -> None:
        """Request reports from an agent, whose ranks are about to start (the job's thread)."""
        self._agents[agent.host] = agent
        self._clocks.add(agent.host, is_remote)
        if is_remote:
            self._ask(agent)
        agent.send(Frame(FrameKind.OBSERVE, payload=json.dumps({"interval": INTERVAL}).encode()))

    def release(self, agent: AgentClient) -> None:
        """End the reports of an agent."""
        agent.send(Frame(FrameKind.OBSERVE, payload=json.dumps({"interval": 0}).encode()))

    def join(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._queue.put(lambda: self._consumers.append(consumer))

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer, without closing it."""
        self._queue.put(lambda: self._consumers.remove(consumer))

    def ask_stack(self, rank: int, answer: Callable[[str], None]) -> bool:
        """Ask a rank for the stacks of its threads. Returns whether the rank exists."""
        agent, process = self._places.get(rank, (None, 0))
        if agent is None:
            return False
        self._queue.put(lambda: self._stack_asked(agent, process, answer))
        return True

    def abandon(self) -> None:
        """End without closing any consumer."""
        self._queue.put(self._consumers.clear)
        self.close(JobEnd(0))

    def hear(self, agent: AgentClient, frame: Frame) -> None:
        """Take a frame from an agent (its thread)."""
        if frame.kind is FrameKind.CLOCK:  # at once, as time in the queue would loosen the bounds
            asked, theirs = map(int, frame.payload.split())
            self._clocks.answered(agent.host, asked, theirs, time.monotonic_ns())
            return
        self._queue.put(lambda: self._take(agent.host, frame))

    def output(self, rank: int, data: bytes) -> None:
        """Take output of a rank (an agent's thread)."""
        self._queue.put(lambda: self._tell(lambda consumer: consumer.output(rank, data)))

    def close(self, ending: JobEnd) -> None:
        """Close all consumers, and wait for that: all agents are gone (the job's thread)."""
        self._ending = ending
        self._queue.put(None)
        if self._thread.ident is not None:  # it was not started if the job could not start
            self._thread.join()

    # The own thread ---------------------------------------------------------------------------------------------------

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
        self._tell(lambda consumer: consumer.close(self._ending))

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
        if frame.kind is FrameKind.STACK:
            text = f"rank {self._rank_of(frame.process)} {frame.payload.decode(errors='replace')}"
            for answer in self._stack_waiters.pop(frame.process, []):
                answer(text)
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

    def _tell(self, call: Callable[[Consumer], None]) -> None:
        for consumer in list(self._consumers):
            try:
                call(consumer)
            except Exception as error:  # any error ends this consumer only, and not the training
                self._consumers.remove(consumer)
                self._say(f"{consumer.title} ends here: {error}")
