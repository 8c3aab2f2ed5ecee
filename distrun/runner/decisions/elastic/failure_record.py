"""The failures of an elastic job so far: which of them are made good, and whose links fail."""

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

KEPT = 30  # failures; a job that runs for months has more, and the last ones say why it ended
FUTILE_GENERATIONS = 3  # in a row: all ranks started again, and one failed by itself before any had joined
FUTILE_TIME = 30.0  # seconds; a script that never joins may fail later than that without being hopeless
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # ends that are hardly the script's own doing
_RANK = re.compile(r"\brank (\d+)\b")


def is_by_itself(failure: Failure) -> bool:
    """Whether a process has failed by its script's own doing."""
    return failure.exit is not None and failure.exit.returncode not in _FROM_OUTSIDE


class FailureHistory:
    """The last failures, in order."""

    def __init__(self, now: float) -> None:
        """Args: the time at which the job began."""
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
        """Take a failure back if its line is still kept, for a better account of it."""
        if line in self._lines:
            self._lines.remove(line)
            self._count -= 1

    @property
    def lines(self) -> list[str]:
        """The failures, a line each."""
        lost = self._count - len(self._lines)
        return [*([f"({lost} earlier failures)"] if lost else []), *self._lines]


class FailureRecord:
    """The failures so far, and what is left of the budget for them."""

    def __init__(self, options: ElasticOptions, now: float) -> None:
        """Args: the limits, and the time."""
        self.history = FailureHistory(now)
        self.budget = Budget(options.max_restarts, options.restart_window)
        self.rounds = Rounds()
        self._gives_up_early = options.gives_up_early
        self._futile = 0
        """The number of futile generations in a row."""
        self._suspect: str | None = None
        """The host whose links failed last, if no other failure came since."""
        self._unheard: set[int] = set()
        """Members of a generation that was left as if a link had failed, which have said nothing since: one of them may
        turn out to have failed then."""
        self._link_failure = ""
        """The line of the history about that link."""

    # --- failures of processes and agents

    def note(self, sentence: str, dead: Collection[Process], generation: int, now: float) -> None:
        """Add a failure to the history, in place of that of a link which it explains.

        Args:
            sentence: what has happened.
            dead: the members that have failed; none: a link has.
            generation: the number of the present generation.
            now: the time.
        """
        if self.explains(dead):
            self.history.forget(self._link_failure)
        self.history.add(sentence, generation, now)

    def explains(self, dead: Collection[Process]) -> bool:
        """Whether a failure is the one for which the last generation was left, which then seemed to be a link's."""
        return not self._unheard.isdisjoint(process.number for process in dead)

    def charge(self, dead: Collection[Process], now: float) -> str:
        """Count a failure; return why it is one too many, empty: it is made good.

        One that explains the failure of a link was counted then.
        """
        if self.explains(dead):
            self._unheard.clear()
            return ""
        born = min((process.born for process in dead), default=None)
        return "" if self.budget.charge(now, born) else self.budget.exhausted

    def futility(self, failure: Failure, current: CurrentGeneration, now: float) -> str:
        """Note that `failure` has ended the present generation; return why no other would do better, empty: it may."""
        is_early = not current.has_survivors and not current.has_joined and now < current.begun + FUTILE_TIME
        self._futile = self._futile + 1 if is_by_itself(failure) and is_early else 0
        self._suspect = None
        if self._gives_up_early and self._futile >= FUTILE_GENERATIONS:
            return f"no rank has joined the job in any of {FUTILE_GENERATIONS} generations"
        return ""

    # --- failures of links

    def heard(self, process: int) -> None:
        """Note that a process has joined or left a generation, so it did not fail in the one before."""
        self._unheard.discard(process)

    def suspect(self, current: CurrentGeneration) -> tuple[str | None, bool]:
        """Return the host whose links have failed in the present generation, and whether they had failed last time."""
        hosts: Mapping[int, str] = {member.rank: member.host for member in current.plan.members}
        host = suspected_host(current.complaints, hosts)
        return host, host is not None and host == self._suspect

    def link_failed(self, suspect: str | None, unheard: set[int]) -> None:
        """Note that the failure that came last is one of a link.

        Args:
            suspect: the host whose link it is, None if that is not known.
            unheard: the members that have not said that they lost their peers.
        """
        self._suspect, self._unheard, self._link_failure = suspect, unheard, self.history.last


def suspected_host(complaints: Mapping[int, str], hosts: Mapping[int, str]) -> str | None:
    """Return the host that most ranks of other hosts complain of, None if no host stands out.

    Two hosts between which a link is broken complain of each other: then there is nobody to suspect. Where one host has
    lost its links to many, it stands out.

    Args:
        complaints: rank -> why it gave up, in words that name ranks.
        hosts: rank -> host.
    """
    named: Counter[str] = Counter()
    for rank, words in complaints.items():
        ranks = map(int, _RANK.findall(words))
        named.update({hosts[other] for other in ranks if other in hosts} - {hosts[rank]})
    most = max(named.values(), default=0)
    suspected = [host for host, times in named.items() if times == most]
    return suspected[0] if len(suspected) == 1 else None
