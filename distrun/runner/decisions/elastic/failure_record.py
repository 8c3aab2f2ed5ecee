"""The failures of an elastic job so far: whether it may go on after another one, and which host's links fail."""

from __future__ import annotations

import re
import signal
from collections import Counter, deque
from collections.abc import Collection, Mapping

from distrun.runner.decisions.elastic.budget import Budget, Rounds
from distrun.runner.decisions.elastic.generation import CurrentGeneration
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.failure import Failure

KEPT = 30  # failures: a job that runs for months has more, and the last ones say why it ended
FUTILE_GENERATIONS = 3  # in a row, where all ranks were started and one failed by itself before any had joined
FUTILE_TIME = 30.0  # seconds: a script that never joins and fails later than that may yet succeed
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # return codes that the script itself hardly causes
_RANK = re.compile(r"\brank (\d+)\b")


def is_by_itself(failure: Failure) -> bool:
    """Whether the script itself has caused the failure of its process."""
    return failure.exit is not None and failure.exit.returncode not in _FROM_OUTSIDE


class FailureHistory:
    """The last failures, in order."""

    def __init__(self, now: float) -> None:
        """Args: the time when the job began."""
        self._began = now
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._count = 0

    def add(self, what: str, generation: int, now: float) -> None:
        """Add a failure: a sentence without a full stop."""
        self._count += 1
        where = f"generation {generation}" if generation else "at the start"
        self._lines.append(f"after {now - self._began:.1f} s, {where}: {what}")

    @property
    def last(self) -> str:
        """The line of the last failure."""
        return self._lines[-1]

    def forget(self, line: str) -> None:
        """Remove a line if it is still kept, because a better one for the same failure follows."""
        if line in self._lines:
            self._lines.remove(line)
            self._count -= 1

    @property
    def lines(self) -> list[str]:
        """One line for each failure."""
        lost = self._count - len(self._lines)
        return [*([f"({lost} earlier failures)"] if lost else []), *self._lines]


class FailureRecord:
    """The failures so far, and the restarts that are left."""

    def __init__(self, options: ElasticOptions, now: float) -> None:
        """Args: the limits, and the time."""
        self.history = FailureHistory(now)
        self.budget = Budget(options.max_restarts, options.restart_window)
        self.rounds = Rounds()
        self._gives_up_early = options.gives_up_early
        self._futile = 0
        """The number of futile generations in a row."""
        self._suspect: str | None = None
        """The host whose links failed last, if no other failure came after that."""
        self._unconfirmed: set[int] = set()
        """Members of a generation that was left as if a link had failed, and that have sent nothing since. One of them
        may have been the cause, which then shows late."""
        self._link_failure = ""
        """The line of the history about that link."""

    # --- failures of processes and agents

    def note(self, sentence: str, dead: Collection[Process], generation: int, now: float) -> None:
        """Add a failure to the history. It replaces the failure of a link if it explains that one.

        Args:
            sentence: what has happened.
            dead: the members that have failed. Empty: a link has failed.
            generation: the number of the present generation.
            now: the time.
        """
        if self.explains(dead):
            self.history.forget(self._link_failure)
        self.history.add(sentence, generation, now)

    def explains(self, dead: Collection[Process]) -> bool:
        """Whether the death of these members explains why the last generation was left, as if a link had failed."""
        return not self._unconfirmed.isdisjoint(process.number for process in dead)

    def charge(self, dead: Collection[Process], now: float) -> str:
        """Count a failure, and return why it is one too many. Empty: the job may go on.

        A failure that explains the failure of a link was counted then.
        """
        if self.explains(dead):
            self._unconfirmed.clear()
            return ""
        born = min((process.born for process in dead), default=None)
        return "" if self.budget.charge(now, born) else self.budget.exhausted

    def futility(self, failure: Failure, current: CurrentGeneration, now: float) -> str:
        """Note that `failure` has ended `current`; return why another generation would fail too. Empty: it may not."""
        is_early = not current.has_survivors and not current.has_joined and now < current.begun + FUTILE_TIME
        self._futile = self._futile + 1 if is_by_itself(failure) and is_early else 0
        self._suspect = None
        if self._gives_up_early and self._futile >= FUTILE_GENERATIONS:
            return f"no rank has joined the job in any of {FUTILE_GENERATIONS} generations"
        return ""

    # --- failures of links

    def confirmed(self, process: int) -> None:
        """Note that a process has joined or left a generation, so it did not fail in the previous one."""
        self._unconfirmed.discard(process)

    def suspect(self, current: CurrentGeneration) -> tuple[str | None, bool]:
        """Return the host whose links fail in the generation `current`, and whether it was suspected last time, too."""
        hosts: Mapping[int, str] = {member.rank: member.host for member in current.plan.members}
        host = suspected_host(current.complaints, hosts)
        return host, host is not None and host == self._suspect

    def link_failed(self, suspect: str | None, unconfirmed: set[int]) -> None:
        """Note that the last failure in the history is a link's. The `unconfirmed` have not reported lost peers."""
        self._suspect, self._unconfirmed, self._link_failure = suspect, unconfirmed, self.history.last


def suspected_host(complaints: Mapping[int, str], hosts: Mapping[int, str]) -> str | None:
    """Return the host that most ranks of other hosts name as lost, None if no host stands out.

    Two hosts with a broken link between them name each other, so neither is suspected. A host that has lost its links
    to many others stands out.
    """
    named: Counter[str] = Counter()
    for rank, words in complaints.items():
        ranks = map(int, _RANK.findall(words))
        named.update({hosts[other] for other in ranks if other in hosts} - {hosts[rank]})
    most = max(named.values(), default=0)
    suspected = [host for host, times in named.items() if times == most]
    return suspected[0] if len(suspected) == 1 else None
