"""Compare a script on several ranks with the same script in one process. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SMALLEST = 0.05  # weights that are all smaller are compared as if one were this large
_BY_CHANCE = 0.2  # relative, of figures in which chance has a part
_REFUSED = re.compile(r"distrun --auto: refused: (.*(?:\n  .*)*)")


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison."""

    word: str
    """`same`, `random`, `refused`, `WRONG`, `crash` or `hang`; `broken` if the script itself fails in one process."""
    detail: str = ""
    """The reason of a refusal, the last line of a crash, or the relative difference of weights."""

    def judged(self, truth: str) -> str:
        """Return `ok`, `wrong`, `crash`, `hang`, `refused` if it could run, or `broken`."""
        if self.word == "refused":
            return "ok" if truth == "cross" else "refused"
        return "ok" if self.word in ("same", "random") else self.word.lower()


def verdict(truth: str, plain: dict[str, Any], ranks: dict[str, Any], tolerance: float) -> Verdict:
    """Return what a script on several ranks has come to.

    Args:
        truth: the situation's; `random` compares figures only.
        plain: the fields of the `forks.Outcome` of one process.
        ranks: the same fields of several ranks.
        tolerance: by how much weights may differ, relative to the largest of their tensor.
    """
    expected = result_of(plain["output"])
    if plain["status"] != 0 or expected is None:
        return Verdict("broken", _last_line(plain["errors"]))
    refusal = _REFUSED.search(ranks["errors"])
    if ranks["status"] == 2 and refusal:
        return Verdict("refused", " ".join(refusal[1].split()))
    if ranks["status"] is None:
        return Verdict("hang", _last_line(ranks["errors"]))
    found = result_of(ranks["output"])
    if ranks["status"] != 0 or found is None:
        return Verdict("crash", f"status {ranks['status']}: {_last_line(ranks['errors'])}")
    if truth == "random":
        off = _off_figures(expected[1], found[1])
        return Verdict("random" if off <= _BY_CHANCE else "WRONG", f"{off:.1%}")
    off = max(_off_weights(expected[0], found[0]), _off_weights([expected[1]], [found[1]]))
    return Verdict("same" if off <= tolerance else "WRONG", f"{off:.1e}")


def result_of(output: str) -> tuple[list[list[float]], list[float]] | None:
    """Return the weights and the other figures that a script has printed last; None if it has not."""
    lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return tuple(json.loads(lines[-1].removeprefix("RESULT "))) if lines else None


def _off_weights(expected: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    """Return the largest difference, relative to the largest weight of its tensor."""
    if [len(each) for each in expected] != [len(each) for each in found]:
        return math.inf
    return max((_off(one, other) for one, other in zip(expected, found, strict=True) if one), default=0.0)


def _off(expected: Sequence[float], found: Sequence[float]) -> float:
    if not all(map(math.isfinite, [*expected, *found])):
        return math.inf
    difference = max(abs(one - other) for one, other in zip(expected, found, strict=True))
    return difference / max(_SMALLEST, *map(abs, expected))


def _off_figures(expected: Sequence[float], found: Sequence[float]) -> float:
    if not expected or len(expected) != len(found) or not all(map(math.isfinite, [*expected, *found])):
        return math.inf
    return max(abs(one - other) / abs(one) for one, other in zip(expected, found, strict=True))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
