"""The policy: which setting the next step uses, and which one remains. It has no clock and starts no processes.

It goes through three phases, in at most `LIMIT` steps:

1. `WARM_UP` steps with the default are not measured, since plans are made, memory is touched, and caches fill.
2. Each candidate changes one value of the best setting so far, and alternates with it, step by step. It is dropped when
   it does not seem faster, mostly after four steps, and becomes the best so far when it keeps seeming faster. The more
   the step times vary, the more pairs of steps this takes, and the fewer candidates get a trial. If there is time left,
   candidates that were dropped without losing every pair have a second chance.
3. The best setting is compared with the default in further pairs of steps: at least `PAIRS`, and as many as the limit
   leaves room for. It stays only if these pairs alone show that it is faster (by the signed-rank test, with an error
   probability of at most `CHANCE`), and by at least `LEAST_GAIN` in the median. Otherwise the default stays.

Only the third phase protects the default, by times that had no part in the choice of the candidate. The order within a
pair is drawn at random, so the test is valid for any other cause of differences between steps: noise of any kind, a
drift, or every third step doing more work (R. A. Fisher, "The Design of Experiments", 1935, section 21). However many
candidates there were, a setting that is exactly as fast as the default is chosen with a probability of at most
`CHANCE`, and a slower one with less.

A Gaussian process, as in Horovod, gives no such guarantee and takes hundreds of steps. Pairs in a fixed order were
fooled by every third step doing more, in a quarter of simulated jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from distrun.runtime.engine.autotuning.chosen import Setting as Setting, Value as Value

LIMIT = 50
"""The most steps that the tuning takes."""
WARM_UP = 5
"""Steps at the beginning that are not measured."""
PAIRS = 8
"""The fewest pairs of steps that compare the winner with the default."""
LEAST_GAIN = 0.02
"""The fraction of a step's time that a setting has to save to be worth a change."""
CHANCE = 0.02
"""The highest probability that a setting that saves nothing is chosen."""

_LEAST = -math.log1p(-LEAST_GAIN)
_SHORTEST = 1e-9  # seconds of a step, so that ratios and logarithms exist

_Program = Generator[Setting, float, bool]


@dataclass(frozen=True)
class Row:
    """One step of the tuning, as the log shows it."""

    step: int
    """Counted from 1."""
    setting: Setting
    """The setting that the step used."""
    seconds: float | None
    """The duration on the slowest rank. None if the step was not measured."""
    decision: str
    """The decision after the step, or empty."""


@dataclass(frozen=True)
class Outcome:
    """The end of a tuning: the setting that remains."""

    setting: Setting
    default: Setting
    steps: int
    """The number of steps that the tuning took."""
    seconds: float | None = None
    """The median step time with the best candidate when it was measured against the default. None if it was not."""
    default_seconds: float | None = None
    """The median step time with the default, measured at the same time."""
    why: str = ""
    """Why the tuning ended early, or empty."""


class Policy:
    """The tuning of some settings. Read `setting`, make a step with it, call `record` with its time, and repeat."""

    def __init__(
        self,
        default: Setting,
        choices: Sequence[tuple[str, Value]],
        lot: Random,
        effect: Callable[[Setting], Hashable] = lambda setting: tuple(sorted(setting.items())),
    ) -> None:
        """
        Args:
            default: the values without tuning.
            choices: the values to try, each with its setting's name, in this order.
            lot: draws the order within pairs. Ranks that tune together seed it alike, and each job seeds it
            differently.
            effect: maps a setting to what it changes in a step. Settings with the same effect are not compared.
        """
        self.default = dict(default)
        self.setting: Setting = self.default
        """The setting for the next step. Once `outcome` is set, for all further steps."""
        self.outcome: Outcome | None = None
        self._choices = choices
        self._lot = lot
        self._effect = effect
        self._steps = 0
        self._measured: tuple[float, float] | None = None  # medians of the winner and the default
        self._said = ""
        self._program = self._tune()
        self._go_on(None)

    @property
    def is_measuring(self) -> bool:
        """Whether `record` needs the time of the next step."""
        return self.outcome is None and self._steps >= WARM_UP

    def record(self, seconds: float | None) -> Row:
        """Record the time of a step with `setting` on the slowest rank, in seconds. In the warm-up it may be None."""
        used = self.setting
        if not self.is_measuring:
            seconds = None
        self._steps += 1
        self._said = "" if self._steps > WARM_UP else "warm-up"
        self._go_on(seconds or 0.0)
        return Row(self._steps, used, seconds, self._said)

    def stop(self, why: str) -> None:
        """End the tuning early, with the default."""
        self._program.close()
        self._end(self.default, why)

    def _go_on(self, seconds: float | None) -> None:
        try:
            self.setting = next(self._program) if seconds is None else self._program.send(seconds)
        except StopIteration as end:
            self._end(self._best if end.value else self.default)

    def _end(self, setting: Setting, why: str = "") -> None:
        self.setting = setting
        winner, default = self._measured or (None, None)
        self.outcome = Outcome(setting, self.default, self._steps, winner, default, why)

    # The program ------------------------------------------------------------------------------------------------------

    def _tune(self) -> _Program:
        """Run the tuning: yield settings, and be sent the time of each step. Returns whether the best may stay."""
        self._best: Setting = self.default
        tried = {self._effect(self.default)}
        if not any(self._effect({**self.default, name: value}) not in tried for name, value in self._choices):
            return False
        for _ in range(WARM_UP):
            yield self.default
        queue = list(self._choices)
        for _ in range(2):  # candidates that may have been unlucky have a second chance, if there is time left
            unlucky = []
            for name, value in queue:
                trial = {**self._best, name: value}
                effect = self._effect(trial)
                if effect in tried or not self._has_room(4):
                    continue
                tried.add(effect)
                seems_faster = yield from self._seems_faster(trial)
                if seems_faster:
                    self._best = trial
                elif seems_faster is None:
                    tried.discard(effect)
                    unlucky.append((name, value))
            queue = unlucky
        if self._best == self.default:
            self._said = f"{self._said}; default: nothing seemed faster"
            return False
        return (yield from self._is_faster(self._best))

    def _has_room(self, steps: int) -> bool:
        return self._steps + steps <= LIMIT - 2 * PAIRS

    def _seems_faster(self, trial: Setting) -> Generator[Setting, float, bool | None]:
        """Alternate `trial` with the best setting until it has lost, or has won clearly enough to be confirmed later.

        The more the steps vary, the more pairs this takes. Returns None if it lost, though not every pair.
        """
        differences: list[float] = []
        gain = faster = 0.0
        for pairs in (2, 4, 6):
            if not self._has_room(4):  # cannot happen in the first round: the caller has checked that
                break
            for _ in range(2):
                ours, its = yield from self._pair(self._best, trial)
                differences.append(math.log(its / ours))
            gain = -median(differences)
            faster = sum(difference < 0 for difference in differences)
            if gain <= 0 or (pairs > 2 and (gain < _LEAST or faster < pairs - 1)):
                self._say("dropped", trial)
                return None if faster else False
            if pairs == 6 or (pairs == 4 and faster == 4):
                break
        self._say("seems faster" if gain >= _LEAST else "dropped", trial)
        return gain >= _LEAST

    def _is_faster(self, trial: Setting) -> _Program:
        """Alternate `trial` with the default. Returns whether these times alone show that it is faster."""
        count = (LIMIT - self._steps) // 2
        limit = largest_sum(count, CHANCE)
        pairs: list[tuple[float, float]] = []
        differences: list[float] = []
        while len(pairs) < count:
            pairs.append((yield from self._pair(self.default, trial)))
            default, its = pairs[-1]
            differences.append(math.log(its / default))
            slower = sum(difference >= 0 for difference in differences)
            self._measured = median(its for _, its in pairs), median(default for default, _ in pairs)
            if slower * (slower + 1) // 2 > limit:  # the least sum of their ranks already exceeds the limit
                break
        else:
            if slower_ranks(differences) <= limit and median(differences) <= -_LEAST:
                self._say("chosen", trial)
                return True
        self._say("default: not clearly faster", trial)
        return False

    def _pair(self, base: Setting, trial: Setting) -> Generator[Setting, float, tuple[float, float]]:
        """Make one step with each setting, in random order. Returns the times of both."""
        if self._lot.getrandbits(1):
            its = yield trial
            ours = yield base
        else:
            ours = yield base
            its = yield trial
        return max(ours, _SHORTEST), max(its, _SHORTEST)

    def _say(self, what: str, setting: Setting) -> None:
        changed = {name: value for name, value in setting.items() if value != self.default[name]}
        self._said = f"{what}: {words(changed)}"


# The signed-rank test: whether the second of two things measured in pairs is smaller, and not by chance. (F. Wilcoxon,
# "Individual comparisons by ranking methods", Biometrics Bulletin 1 (1945), 80-83.) Only the order of the differences
# counts, so a step that took ten times as long for an unrelated reason weighs no more than any other.


def slower_ranks(differences: Sequence[float]) -> int:
    """Return the sum of the ranks of the differences that are not negative. The smallest absolute value has rank 1.

    Among equal absolute values, the differences that are not negative get the higher ranks, so ties never favour the
    second thing.
    """
    ordered = sorted(differences, key=lambda difference: (abs(difference), difference >= 0))
    return sum(rank for rank, difference in enumerate(ordered, start=1) if difference >= 0)


def largest_sum(count: int, chance: float) -> int:
    """Return the largest sum of ranks that `count` differences stay at or below with at most the probability `chance`.

    That holds if each difference is as likely to be positive as negative. Returns -1 if they are too few.
    """
    ways = [1]  # by sum of ranks: the number of sign patterns that give it
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    reached, limit = 0, chance * 2**count
    for total, number in enumerate(ways):
        reached += number
        if reached > limit:
            return total - 1
    return len(ways) - 1


def words(setting: Setting) -> str:
    """Format a setting as the log shows it: `bucket_bytes=6553600 first_bucket_bytes=1048576`."""
    return " ".join(f"{name}={value}" for name, value in setting.items())
