"""A launcher of elastic jobs in a hundred lines, for tests of what ranks do: no agent, policy by hand.

Its hosts are names: ranks of several meet over the loopback interface, always at the same port.

The tests of the launcher itself start real jobs with `distrun --elastic`.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running_distrun import Stream

from distrun.contract.elastic import messages, variables
from distrun.contract.elastic.messages import Assignment, Message, Prepare, Waiting
from distrun.contract.launch import LaunchContract

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


@dataclass(eq=False)
class Process:
    """One process of the job, with our end of its control channel."""

    popen: subprocess.Popen[bytes]
    control: socket.socket
    host: str
    slot: int
    said: list[Message] = field(default_factory=list)
    joiner: messages.Joiner = field(default_factory=messages.Joiner)

    def __post_init__(self) -> None:
        self.stdout = Stream(self.popen.stdout)

    @property
    def lines(self) -> list[str]:
        """All whole lines that it has written so far."""
        return self.stdout.text.split("\n")[:-1]

    def output(self) -> str:
        """All that it has written so far."""
        return self.stdout.text.removesuffix("\n")

    def await_output(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Wait until it has written what is waited for; return all lines so far."""
        self.stdout.until(lambda: is_there(self.lines) or self.stdout.has_ended, DEADLINE)
        how = "it ended without" if self.stdout.has_ended else "it does not write"
        assert is_there(self.lines), f"{how} what is waited for; it wrote:\n{self.output()}"
        return self.lines

    def told(self) -> list[dict[str, Any]]:
        """All that it has told so far, in lines of JSON."""
        return facts_in(self.lines)

    def await_hold(self, generation: int) -> None:
        """Wait until it tells that it is held in a generation."""
        self.await_output(
            lambda lines: any(each.get("held") and each["generation"] == generation for each in facts_in(lines))
        )

    def await_step(self, generation: int, steps: int = 1) -> None:
        """Wait until it has reported that many steps of a generation."""
        self.await_output(lambda lines: sum(_is_step(fact, generation) for fact in facts_in(lines)) >= steps)

    def close(self) -> None:
        """End it, and everything that belongs to it, such as workers of a data loader."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.stdout.close()
        self.control.close()


class Supervisor:
    """Starts processes, and makes them generations. Use it in a `with`: nothing is left behind."""

    def __init__(
        self, command: Sequence[str], folder: Path | None = None, environ: dict[str, str] | None = None, hosts: int = 1
    ) -> None:
        """Args: the command of every process; the folder in which they run; variables on top of ours; the number of
        hosts, among which processes are dealt out."""
        self._command = list(command)
        self._folder = folder
        self._environ = {**os.environ, **(environ or {})}
        self._job, self._key = secrets.token_hex(16), secrets.token_hex(32)
        self._hosts = hosts
        self._keeper = socket.socket()  # keeps a port for the rank 0 of each generation, and does not listen
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._keeper.bind(("127.0.0.1", 0))
        self._port = self._keeper.getsockname()[1]
        self.generation = 0
        self.members: list[Process] = []
        self.processes: list[Process] = []

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
        self._keeper.close()

    def contract(self, rank: int, hosts: Sequence[str], slot: int, generation: int) -> dict[str, str]:
        """Return the variables of a rank, given the host of each."""
        place = hosts[:rank].count(hosts[rank])
        having = [host for host in dict.fromkeys(hosts) if hosts.count(host) > place]
        return LaunchContract(
            job=self._job,
            key=self._key,
            rank=rank,
            size=len(hosts),
            local_rank=place,
            local_size=hosts.count(hosts[rank]),
            cross_rank=having.index(hosts[rank]),
            cross_size=len(having),
            hostname=hosts[rank],
            master_addr="127.0.0.1",
            master_port=29400,
            rendezvous=f"127.0.0.1:{self._port}",
            generation=generation,
            slot=slot,
            restart=max(0, generation - 1),
        ).to_environ()

    def start(self, rank: int, size: int, generation: int = 0) -> Process:
        """Start a process; generation 0 is a newcomer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = len(self.processes)
        host = f"host{number % self._hosts}"
        taken = {process.slot for process in self.processes if process.host == host and process.popen.poll() is None}
        slot = next(slot for slot in itertools.count() if slot not in taken)
        hosts = [host] * size  # a newcomer's place is provisional
        if generation:
            hosts = [f"host{index % self._hosts}" for index in range(size)]
        with theirs:
            popen = subprocess.Popen(
                self._command,
                env={
                    **self._environ,
                    **self.contract(rank, hosts, slot, generation),
                    variables.CONTROL_FD: str(theirs.fileno()),
                    "OMP_NUM_THREADS": "1",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                cwd=self._folder,
                start_new_session=True,
            )
        self.processes.append(process := Process(popen, ours, host, slot))
        return process

    def begin(self, size: int) -> None:
        """Start the first generation."""
        self.generation = 1
        self.members = [self.start(rank, size, 1) for rank in range(size)]

    def change_all(self, folder: Path) -> Process:
        """Have one rank become two, and then leave the newcomer alone, which ends well; return the newcomer.

        The ranks wait at a named pipe `go` in the folder, until a change is planned, and then until they are killed.
        """
        self.begin(1)
        coming = self.start(1, 2)
        (first,) = self.members
        first.await_hold(1)
        self.await_message(coming, Waiting)
        self.prepare("a host has come")
        (folder / "go").write_text("")
        self.await_message(first, Waiting)
        self.assign([first, coming])
        first.await_hold(2)
        self.replace(0, newcomers=0)
        self.finish(1)
        return coming

    def assign(self, members: Sequence[Process], reason: str = "a test says so") -> None:
        """Make the next generation of processes, in rank order."""
        self.generation += 1
        self.members = list(members)
        hosts = [process.host for process in members]
        for rank, process in enumerate(members):
            environ = self.contract(rank, hosts, process.slot, self.generation)
            try:
                process.control.send(messages.encode(Assignment(self.generation, environ, reason)))
            except ConnectionError:
                raise AssertionError(f"rank {rank} of the next generation has ended:\n{process.output()}") from None

    def prepare(self, reason: str = "a test says so") -> None:
        """Have the members leave at their next step boundary."""
        for process in self.members:
            process.control.send(messages.encode(Prepare(self.generation, reason)))

    def kill(self, rank: int) -> Process:
        """Kill a member, and wait for its end."""
        process = self.members.pop(rank)
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        return process

    def replace(self, rank: int, newcomers: int = 1, reason: str = "a rank was killed") -> None:
        """Kill a member, and make the next generation of the others and newcomers. Ranks lie as the launcher has them:
        the lowest survivor becomes rank 0, others keep theirs where they can, and newcomers get what is left."""
        survivors = dict(enumerate(self.members))
        del survivors[rank]
        self.kill(rank)
        started = [self.start(rank, len(survivors) + newcomers) for _ in range(newcomers)]
        for process in started:
            self.await_message(process, Waiting)
        self.assign(placed(survivors, started), reason)

    def grow(self, newcomers: int, reason: str = "a host has come") -> None:
        """Have the members leave at a step boundary, and make the next generation of them and newcomers."""
        self.prepare(reason)
        for process in self.members:
            # Who comes to its boundary later finds the others gone, perhaps, and says so instead of the reason.
            while getattr(self.await_message(process, Waiting), "generation", None) != self.generation:
                pass
        started = [self.start(0, len(self.members) + newcomers) for _ in range(newcomers)]
        for process in started:
            self.await_message(process, Waiting)
        self.assign([*self.members, *started], reason)

    def let_end(self) -> None:
        """Let a job end that goes on until a file `end` is in its folder: after a step of the present generation."""
        assert self._folder is not None
        self.members[0].await_step(self.generation, 2)
        (self._folder / "end").touch()

    def await_message(self, process: Process, *kinds: type) -> Message:
        """Return the next message of one of these kinds that a process sends, or has sent since the last call."""
        deadline = time.monotonic() + DEADLINE
        while True:
            while process.said:
                message = process.said.pop(0)
                if isinstance(message, kinds):
                    return message
            if not select.select([process.control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {kinds} within {DEADLINE} s; it wrote:\n{process.output()}")
            data = process.control.recv(2 * messages.PIECE)
            if not data:
                raise AssertionError(f"it ended without {kinds}; it wrote:\n{process.output()}")
            if (message := process.joiner.feed(data)) is not None:
                process.said.append(message)

    def finish(self, members: int | None = None) -> list[dict[str, Any]]:
        """Wait until all members have exited well, so many if that is given; return what all processes have told."""
        assert members in (None, len(self.members))
        try:
            statuses = [process.popen.wait(DEADLINE) for process in self.members]
            for process in self.members:
                process.stdout.close()
        except subprocess.TimeoutExpired:
            statuses = []
        written = "\n\n".join(process.output()[-3000:] for process in self.members)
        assert statuses == [0] * len(self.members), f"exit statuses {statuses or 'are missing'}\n\n{written}"
        return [fact for process in self.processes for fact in process.told()]

    def steps_made(self, first: int = 1) -> int:
        """Return the number of steps that were made, in one generation each and in their order."""
        done = 0
        for generation in range(1, self.generation + 1):
            parts = [[fact["step"] for fact in each.told() if _is_step(fact, generation)] for each in self.processes]
            for part in parts:
                assert part == list(range(first + done, first + done + len(part)))
            done += max(map(len, parts))
        return done


def facts_in(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return what lines of JSON tell; there may be others."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def _is_step(fact: dict[str, Any], generation: int) -> bool:
    return "step" in fact and fact["generation"] == generation


def placed(survivors: dict[int, Process], newcomers: Sequence[Process]) -> list[Process]:
    """Return the members of a generation in rank order, given the survivors by their old ranks."""
    size = len(survivors) + len(newcomers)
    places: dict[int, Process] = {}
    homeless = []
    for index, (rank, process) in enumerate(sorted(survivors.items())):
        if index == 0:
            places[0] = process
        elif rank < size:
            places[rank] = process
        else:
            homeless.append(process)
    rest = iter([*homeless, *newcomers])
    return [places[rank] if rank in places else next(rest) for rank in range(size)]


def python(script: Path | str, *arguments: str) -> list[str]:
    """Return the command that runs a script with this Python."""
    return [sys.executable, str(script), *arguments]
