"""The decision queue: it keeps decisions, in the order of their execution on every rank, until they are sent.

A disagreement keeps its place, and holds back the decisions behind it, until one rank of each side has answered where
in user code it submitted the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from distrun.runtime.negotiation.decisions import LONGEST_LIST, Decision, Execute, Fail, Key
from distrun.runtime.negotiation.matching.disagreement import describe_disagreement, sides_of
from distrun.runtime.negotiation.matching.matching import Slot


@dataclass
class _Inquiry:
    """A disagreement that waits for ranks to say where they submitted the operation."""

    slot: Slot
    asked: set[int] = field(default_factory=set)


class DecisionQueue:
    """The decisions that have not been sent yet."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, Key]] = []
        """See `Controller.questions`."""
        self._ready: list[int] = []
        self._ready_as = (0, 0)  # process set, and the number of ranks that take part, for `_ready`
        self._decisions: list[Decision | _Inquiry] = []
        self._inquiries = 0  # the number of these among the decisions

    def execute(self, process_set: int, cache_ids: list[int], taking_part: int = 0) -> None:
        """Add operations to execute. Consecutive calls for the same ranks are merged into one decision."""
        if (process_set, taking_part) != self._ready_as:
            self._flush()
            self._ready_as = process_set, taking_part
        self._ready += cache_ids

    def add(self, decision: Decision) -> None:
        """Add any other decision."""
        self._flush()
        self._decisions.append(decision)

    def fail(self, slot: Slot) -> None:
        """Add the failure of an operation that the ranks disagree about. It waits for one answer from each side."""
        inquiry = _Inquiry(slot)
        for ranks in sides_of(slot).values():
            if ranks[0] not in slot.sites:
                inquiry.asked.add(ranks[0])
                self.questions.append((ranks[0], slot.key))
        self._inquiries += 1
        self._flush()
        self._decisions.append(inquiry)

    def site_told(self, rank: int, key: Key, site: str) -> None:
        """Handle the call site from a rank that was asked for it, or "" if the rank does not know it."""
        for decision in self._decisions:
            if isinstance(decision, _Inquiry) and decision.slot.key == key and rank in decision.asked:
                decision.asked.discard(rank)
                if site:
                    decision.slot.sites[rank] = site
                return

    def take(self, site_of: Callable[[Slot, int], str]) -> list[Decision]:
        """Return the decisions since the last call, except those behind a disagreement that waits for answers.

        `site_of` returns the call site of a rank for a slot's operation, as far as it is known.
        """
        self._flush()
        if not self._inquiries:
            told, self._decisions = self._decisions, []
            return told  # type: ignore[return-value]
        decisions: list[Decision] = []
        for place, decision in enumerate(self._decisions):
            if isinstance(decision, _Inquiry):
                if decision.asked:
                    del self._decisions[:place]
                    return decisions
                self._inquiries -= 1
                slot = decision.slot
                text = describe_disagreement(slot, lambda rank, slot=slot: site_of(slot, rank))  # type: ignore[misc]
                decisions.append(Fail(slot.key, text, tuple(sorted(slot.present))))
            else:
                decisions.append(decision)
        self._decisions.clear()
        return decisions

    def _flush(self) -> None:
        ready = self._ready
        if ready:
            self._ready = []
            process_set, taking_part = self._ready_as
            if len(ready) <= LONGEST_LIST:
                self._decisions.append(Execute(ready, process_set, taking_part))
                return
            for start in range(0, len(ready), LONGEST_LIST):
                self._decisions.append(Execute(ready[start : start + LONGEST_LIST], process_set, taking_part))
