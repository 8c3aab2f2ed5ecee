"""The trial of a step: what the ranks are about to apply is compared with the gradients of the whole batch.

In a step that is tried, a copy of the last rank (`copying`) goes through the body of the script's loop first: alone, on
the whole batch, as one process would, silently and without writing files. It notes the gradients that each optimizer is
about to use. Then the ranks go through it, each on its part; where they draw random numbers they draw those of the
copy, each its rows (`drawing`). What one of them has then is what all have: the last one compares. A difference beyond
rounding ends the job before a weight has been updated. Losses that the script reads are compared as well, and that all
ranks make the same calls.

So whatever the script does with its batch is tried, and not only what is known to be wrong: statistics of the batch,
positions in it, choices among samples, gradients that go another way than through the loss. The first two batches of an
optimizer are tried, then those at growing distances, as something may be kept from batch to batch. A copy that cannot
be made, or ends in another way, shows nothing: the step then goes on as if it were not tried.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

import distrun
from distrun.auto import job
from distrun.auto.refusing import refuse
from distrun.auto.torch import generators, statistics
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session
from distrun.auto.torch.trial import copying, drawing, merging

_LINES = (
    "loss = criterion(model(x), y).mean()  # a mean or a sum over the samples, of what each sample has for itself",
    "or, where the loss is one of the whole batch:",
    "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
)
_EXACT, _ROUNDED = 2e-4, 0.05
_SMALL = 1e-3  # of the norm of all gradients: what is smaller is compared with that
_SPARED = 1.0  # seconds that trials may take in all,
_SHARE = 0.01  # and of the time in which the script has trained
_FARTHEST = 1000  # batches from one trial to the next


@dataclass
class _Running:
    """A trial that is under way on this rank."""

    found: copying.Found | None
    """The findings of the copy, on the last rank; None on the others."""
    mode: drawing.Replaying
    steps: int = 0
    """The number of steps that have been compared."""
    reads: int = 0
    """The number of losses that have been read."""


_running: _Running | None = None
_batches = 0  # that were divided since there is a new optimizer
_next = 1  # the batch that is tried next
_began = _spent = 0.0
_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # in the batch that is tried


def begin(mine: Any, part: Part, is_new: bool, compare: Callable[[], None]) -> Any:
    """Try the step on a batch if it is its turn; return what the script gets: this rank's part, in the copy all of it.

    Args:
        mine: this rank's part of the batch, as the DataLoader gave it.
        part: what it is of the batch.
        is_new: whether an optimizer is new since the last batch.
        compare: refuses the script if the ranks' weights differ.
    """
    global _running, _spent
    if not _is_due(is_new) or part.is_whole or not _is_possible():
        return mine
    began = time.monotonic()
    compare()
    whole = merging.merged(distrun.allgather_object(mine, name="auto.trial"), part.sizes)
    if whole is None:
        return mine
    found: copying.Found | None = None
    _stepped.clear()
    generators.of_torch.use(own=False)
    if _is_judge():
        copy = copying.begin()
        if copy is None:  # this is the copy
            _work_alone()
            return whole
        found = copy.found()
    draws = distrun.broadcast_object(None if found is None else found.draws, distrun.size() - 1, "auto.trial.copy")
    if draws is None:
        generators.of_torch.use(own=True)
    else:
        _running = _Running(found, drawing.Replaying(draws, part, lambda: generators.of_torch.use(own=True)))
        _running.mode.begin()
    _spent += time.monotonic() - began
    return mine


def _is_due(is_new: bool) -> bool:
    """Whether it is a batch's turn: the first, the second, the fourth and so on; from the third on if there is time."""
    global _batches, _next, _began
    if is_new or not _began:
        _batches, _next, _began = 0, 1, _began or time.monotonic()
    _batches += 1
    if _batches < _next:
        return False
    _next = _batches + min(_batches, _FARTHEST)
    has_time = _spent < _SPARED + _SHARE * (time.monotonic() - _began)
    return _batches <= 2 or bool(distrun.broadcast_object(has_time, distrun.size() - 1, "auto.trial.due"))


def _is_possible() -> bool:
    """Whether a copy can do what this process does: not on a GPU, nor where functions are compiled for shapes."""
    is_on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return job.current.mode == "global" and not is_on_gpu and not statistics.is_compiling() and drawing.is_possible()


def _is_judge() -> bool:
    """Whether this rank compares: the last one, which writes no files."""
    return distrun.rank() == distrun.size() - 1


def _work_alone() -> None:
    """Make this process, a copy, one that has no other ranks."""
    job.current.is_copy = True
    for optimizer in session.prepared:
        reducer: Any = getattr(optimizer, "_reducer", None)
        if reducer is not None:
            reducer._is_alone = True
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.grad is not None:  # it is in memory that all ranks share
                parameter.grad = parameter.grad.clone()
    session.lose_part()
    copying.current().begin()


def is_running() -> bool:
    """Whether a step is tried now, by this rank or a copy of it."""
    return job.current.is_copy or _running is not None


def before_backward() -> None:
    """The script calls `backward()`: all ranks do, or none."""
    if _running is not None:
        _meet("calls backward()")


def before_step(optimizer: torch.optim.Optimizer) -> None:
    """An optimizer is about to use its gradients: the copy notes them, the ranks compare theirs."""
    _follow_draws(False)
    if not is_running() or optimizer not in session.prepared:
        return
    _stepped.add(optimizer)
    gradients = _gradients_of([optimizer])
    if job.current.is_copy:
        copying.current().found.steps.append(gradients)
        return
    assert _running is not None
    _meet("calls an optimizer's step()")
    found, place = _running.found, _running.steps
    _running.steps += 1
    if found is None:
        _judge("")
    elif place < len(found.steps):
        _judge(_difference(found.steps[place], gradients, found.is_rounded))
    else:
        _judge(f"there are more than {len(found.steps)} steps of optimizers in this batch")


def after_step() -> None:
    """An optimizer has used its gradients."""
    _follow_draws(True)


def draws_alone() -> bool:
    """Whether this rank draws random numbers of its own in the body of the loop."""
    return _running is None or _running.mode.is_void


def _follow_draws(follows: bool) -> None:
    """Follow what is drawn, or do not: all ranks draw alike in the step of an optimizer."""
    mode = copying.current().mode if job.current.is_copy else _running.mode if _running is not None else None
    if mode is not None:
        mode.is_paused = not follows


def note_read(value: float) -> None:
    """A loss has been read, by the script: the copy notes its value, the ranks compare theirs.

    Args:
        value: the number that the script is given.
    """
    if job.current.is_copy:
        copying.current().found.reads.append(value)
    elif _running is not None:
        _meet("reads a loss")
        found, place = _running.found, _running.reads
        _running.reads += 1
        why = ""
        if found is not None and place < len(found.reads):
            expected, mine = found.reads[place], value
            if not _are_close(expected, mine, abs(expected) + _SMALL, found.is_rounded):
                why = f"a loss that the script reads is {mine:.6g} by a part, and {expected:.6g} by the batch"
        _judge(why)


def _meet(what: str) -> None:
    """Refuse the script if some rank does something else now."""
    if len(set(distrun.allgather_object(what, name="auto.trial.meet"))) > 1:
        end()
        refuse(
            f"one rank {what} where another does not, in the same batch: what the script does depends on the samples, "
            "of which each rank has its part",
            _LINES,
        )


def _judge(why: str) -> None:
    """Refuse the script if the last rank knows why."""
    assert _running is not None
    if _running.mode.chosen:
        why = f"it draws by index among the samples of the batch ({_running.mode.chosen})"
    why = distrun.broadcast_object(why, distrun.size() - 1, "auto.trial.verdict")
    if why:
        is_void = _running.mode.is_void and not _running.mode.chosen
        end()
        if not is_void:
            refuse(f"what a batch comes to is not what the ranks would make of their parts: {why}", _LINES)


def finish() -> None:
    """The script takes its next batch: the copy ends; the ranks compare the gradients that nothing has used yet."""
    if job.current.is_copy:
        copying.current().found.left = _gradients_of(session.prepared - _stepped)
        copying.current().end()
    elif _running is not None:
        _meet("takes the next batch")
        found = _running.found
        left = _gradients_of(session.prepared - _stepped)
        _judge("" if found is None else _difference(found.left, left, found.is_rounded))
        end()


def end() -> None:
    """The script leaves its loop: the copy ends, a trial is over."""
    global _running
    if job.current.is_copy:
        copying.current().end()
    if _running is not None:
        _running.mode.end()
        _running = None
        generators.of_torch.use(own=True)


def _gradients_of(optimizers: Iterable[torch.optim.Optimizer]) -> copying.Gradients:
    """Return the gradients of all weights of some optimizers, by the weights' identity; None where there is none.

    A copy has its weights where this process has them.
    """
    found: copying.Gradients = {}
    with torch._C._DisableTorchDispatch():
        for optimizer in optimizers:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                gradient = parameter.grad
                if gradient is not None:
                    gradient = (gradient.to_dense() if gradient.is_sparse else gradient).detach().double()
                found[id(parameter)] = gradient
    return found


def _difference(whole: copying.Gradients, mine: copying.Gradients, is_rounded: bool) -> str:
    """Return in what gradients differ; "" if they do not, but for rounding."""
    if whole.keys() != mine.keys():
        return "optimizers make their steps in another order"
    total = sum(float(each.norm()) ** 2 for each in whole.values() if each is not None) ** 0.5
    for weight, expected in whole.items():
        found = mine[weight]
        like = expected if expected is not None else found
        if like is None:
            continue
        zero = torch.zeros_like(like)
        expected, found = zero if expected is None else expected, zero if found is None else found
        norm, error = float(expected.norm()), float((expected - found).norm())
        if not _are_close(norm, norm + error, max(norm, _SMALL * total), is_rounded):
            return (
                f"a weight of shape {list(expected.shape)} gets a gradient of norm {float(found.norm()):.4g}, where "
                f"that of the batch has {norm:.4g}, and the difference {error:.4g}"
            )
    return ""


def _are_close(expected: float, found: float, scale: float, is_rounded: bool) -> bool:
    """Whether numbers are equal, but for rounding; two that are not finite are."""
    if not (math.isfinite(expected) and math.isfinite(found)):
        return math.isfinite(expected) == math.isfinite(found)
    return abs(expected - found) <= (_ROUNDED if is_rounded else _EXACT) * scale
