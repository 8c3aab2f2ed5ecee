"""The decision queue: what was decided, in the order in which every rank executes it, until it is told.

A disagreement keeps its place, and holds back what comes behind it, until one rank of each side has said where in user
code it submitted the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from distrun.runtime.negotiation.decisions import LONGEST_LIST, Decision, Execute, Fail, Key
from distrun.runtime.negotiation.matching.disagreement import describe_disagreement, sides_of
from distrun.runtime.negotiation.matching.matching import Slot

SiteOf = Callable[[Slot, int], str]
"""Returns where a rank submitted the operation of a slot, as far as that is known."""


@dataclass
class _Inquiry:
    """A disagreement of which ranks are still to say where they submitted it."""

    slot: Slot
    asked: set[int] = field(default_factory=set)


class DecisionQueue:
    """The decisions that have not been told yet."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, Key]] = []
        """See `Controller.questions`."""
        self._ready: list[int] = []
        self._ready_as = (0, 0)  # process set, and how many ranks take part, of what is ready
        self._decisions: list[Decision | _Inquiry] = []
        self._inquiries = 0  # among the decisions

    def execute(self, process_set: int, cache_ids: list[int], taking_part: int = 0) -> None:
        """Add that operations are executed; those that come one after the other become one decision."""
        if (process_set, taking_part) != self._ready_as:
            self._flush()
            self._ready_as = process_set, taking_part
        self._ready += cache_ids

    def add(self, decision: Decision) -> None:
        """Add another decision."""
        self._flush()
        self._decisions.append(decision)

    def fail(self, slot: Slot) -> None:
        """Add that an operation fails about which the ranks disagree, once one rank of each side has said where it
        is."""
        inquiry = _Inquiry(slot)
        for ranks in sides_of(slot).values():
            if ranks[0] not in slot.sites:
                inquiry.asked.add(ranks[0])
                self.questions.append((ranks[0], slot.key))
        self._inquiries += 1
        self._flush()
        self._decisions.append(inquiry)

    def site_told(self, rank: int, key: Key, site: str) -> None:
        """A rank that was asked has said where in user code it submitted an operation; "" if it does not know."""
        for decision in self._decisions:
            if isinstance(decision, _Inquiry) and decision.slot.key == key and rank in decision.asked:
                decision.asked.discard(rank)
                if site:
                    decision.slot.sites[rank] = site
                return

    def take(self, site_of: SiteOf) -> list[Decision]:
        """Return the decisions since the last call, but for those behind a disagreement that waits for answers."""
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
