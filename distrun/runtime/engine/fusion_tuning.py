"""Tuning the fusion threshold, on the coordinator alone.

The operations of a step have names that come again in the next step. The first name that is decided for the third time
becomes the mark. The time from one decision about the mark to the next is the time of one step of the slowest rank,
since all ranks have submitted the mark by then. So rank 0 measures without asking any rank. Its choice goes to all
ranks as a decision among the others (`Retune`), at one place in their order.

Unnamed operations do not identify steps, so a job that has no others is not tuned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random

from distrun.runtime.engine.autotuning import turns
from distrun.runtime.engine.autotuning.journal import Journal
from distrun.runtime.engine.autotuning.policy import Policy
from distrun.runtime.negotiation.decisions import Decision, Execute, Retune
from distrun.runtime.operations.request import Request, fusion_key
from distrun.tensor_fusion.batching import FUSED_BELOW, fuse

THRESHOLDS = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""The thresholds to choose from: bytes that may be fused."""

_NAME = "fusion_threshold"
_LOOKS = 3  # steps that are observed, to see what is fused, before the tuning begins


class FusionTuner:
    """Watches the coordinator's decisions, and inserts decisions about the threshold."""

    def __init__(
        self, threshold: int, request: Callable[[int], Request], journal: Journal, lot: Random | None = None
    ) -> None:
        """`threshold`: the most bytes to fuse while nothing is tuned. `request` returns the request for a cache id,
        `journal` records every step, and for `lot` see `Policy`."""
        self._default = threshold
        self._request = request
        self._journal = journal
        self._lot = lot or Random()
        self._counts: Counter[int] = Counter()
        self._mark: int | None = None
        self._since = 0.0  # when the mark was decided last
        self._looks = 0
        self._most = 0  # bytes of the largest batch that was fused so far
        self._policy: Policy | None = None
        self.is_over = False
        """Whether the tuning is over."""

    def amend(self, decisions: Iterable[Decision], now: float) -> Iterator[Decision]:
        """Yield the decisions, and before each decision that begins a step the threshold for it, if that changes."""
        for decision in decisions:
            if isinstance(decision, Execute) and not decision.taking_part and not self.is_over:
                if self._mark is None:
                    self._find_mark(decision.cache_ids)
                elif self._policy is None:
                    self._look_at(decision.cache_ids)
                if self._mark in decision.cache_ids:
                    yield from self._begin_step(now)
            yield decision

    def _find_mark(self, cache_ids: list[int]) -> None:
        if len(cache_ids) == 1:
            return  # most often the caller waits for each such operation, and there is nothing to fuse
        for cache_id in cache_ids:
            self._counts[cache_id] += 1
            if self._counts[cache_id] == 3 and self._request(cache_id).name is not None:
                self._mark = cache_id
                return

    def _look_at(self, cache_ids: list[int]) -> None:
        """Note how many bytes would be fused under the largest threshold."""
        requests = [self._request(cache_id) for cache_id in cache_ids]
        batches = fuse(
            requests,
            key=lambda request: fusion_key(request) if request.nbytes < FUSED_BELOW else None,
            nbytes=lambda request: request.nbytes,
            threshold=max(self._default, THRESHOLDS[-1]),
        )
        self._most = max([self._most, *(sum(each.nbytes for each in batch) for batch in batches if len(batch) > 1)])

    def _begin_step(self, now: float) -> Iterator[Retune]:
        seconds, self._since = now - self._since, now
        if turns.is_taken():
            if self._policy is not None:  # the tuning starts again when the other tuner is done
                self._policy = None
                yield Retune(self._default)
            return
        if self._policy is None:
            self._looks += 1
            if self._looks <= _LOOKS:
                return
            self._policy = Policy(
                {_NAME: self._default},
                [(_NAME, value) for value in THRESHOLDS],
                self._lot,
                # Thresholds above what is ever fused all have the same effect, so they are not compared.
                lambda setting: min(int(setting[_NAME]), self._most),
            )
        else:
            before = self._policy.setting
            self._journal.add(self._policy.record(seconds))
            if self._policy.setting != before:
                yield Retune(int(self._policy.setting[_NAME]))
        if self._policy.outcome is not None:
            self.is_over = True
            if self._policy.outcome.steps:
                self._journal.end(self._policy.outcome)
