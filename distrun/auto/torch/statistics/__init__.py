"""Statistics of the batch that carry no gradient: a loss that is computed with them is refused.

Examples are the mean that normalises the inputs, weights that are divided by their own sum, and a `pos_weight` counted
from the labels. The graph of the loss holds them as numbers like any other, so it does not show that they come from
this rank's part alone. Therefore every operation of torch is followed in the first batch of some iterations
(`following`): which dimension of its result counts the samples (`rows`), whether that was reduced, and whether the
result of that was combined with the samples. Nodes of the graph that take in such a tensor are marked, and `check`
looks for marks before `backward()`. In all other batches nothing is done.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

import distrun
from distrun.auto.refusing import refuse
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session
from distrun.auto.torch.statistics import compiling
from distrun.auto.torch.statistics.following import Following, marked

_LINES = (
    "x = norm(x)  # norm = torch.nn.BatchNorm1d(n, affine=False) from before the loop; or by mean and std of all data",
    "loss = (w * losses).sum() / w.sum()  # instead of w / w.sum() before the product",
    "pos_weight = torch.tensor(3.0)  # weights of the classes in all data, from before the loop",
)
_FIRST_ITERATIONS = 4
_STEPS_BETWEEN = 100  # if iterations are short, following the first batch of each would be slow
_following = Following()
_iterations = 0  # since the latest new optimizer
_followed_at = 0  # the value of `session.steps`


def begin(batch: Any, part: Part, is_new: bool = False) -> None:
    """Follow the computation from the first batch of an iteration, in the first iterations and then every 100 steps.

    Args:
        batch: what the DataLoader gives the script.
        part: this rank's part.
        is_new: whether an optimizer is new since the last batch, as when the script begins to train another model.
    """
    global _iterations, _followed_at
    _iterations = 1 if is_new else _iterations + 1
    if _iterations > _FIRST_ITERATIONS and session.steps < _followed_at + _STEPS_BETWEEN:
        return
    _followed_at = session.steps
    if not part.is_whole and compiling.can_follow() and max(part.sizes) > 1:
        compiling.run_eagerly(is_eager=True)
        _following.begin(batch, part.size)


def end() -> None:
    """Stop following."""
    compiling.run_eagerly(is_eager=False)
    if _following.is_on or _following.is_entered:
        _following.end()


@contextmanager
def paused() -> Iterator[None]:
    """A context in which nothing is followed."""
    was_on, _following.is_on = _following.is_on, False
    try:
        yield
    finally:
        _following.is_on = was_on


def check(roots: Sequence[Tensor]) -> None:
    """Refuse losses that a statistic of the part has gone into. All ranks call it, with losses of the same kind.

    The losses are refused only if all ranks with more than one sample have found such a statistic. Where another
    dimension happens to have the extent of a rank's number of samples, that rank may be mistaken, but the others, whose
    parts are not all of that size, are not. Maxima and minima that are the same on all ranks are allowed, as they are
    also the batch's: pixels range from 0 to 1 in every part.
    """
    if not _following.is_on:
        return
    found = marked(roots)
    others = [each for each in found if each.extreme is None]
    counts = int(_following.size > 1)
    mine = np.array([counts, bool(found), bool(others), sum(_sum_of_bytes(each.extreme) for each in found)])
    voting = [ranks for ranks in distrun.allgather(mine, name="auto.statistics").reshape(-1, 4).tolist() if ranks[0]]
    if not voting or not all(is_found for _, is_found, *_ in voting):
        return
    if any(is_other for _, _, is_other, _ in voting) or len({extremes for *_, extremes in voting}) > 1:
        _following.end()
        words = next((each.words for each in [*others, *found]), "a statistic of the batch's samples")
        refuse(
            f"the loss is computed with {words}, which carries no gradient: each rank would take it from its own part "
            "of the batch",
            _LINES,
        )


def _sum_of_bytes(value: Tensor | None) -> int:
    return 0 if value is None else zlib.crc32(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
