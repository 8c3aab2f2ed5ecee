"""The trial of a step: the gradients that the ranks are about to apply are compared with the whole batch's.

In a step that is tried, a copy of the last rank (`copying`) goes through the body of the script's loop first: alone, on
the whole batch, as a single process would, silently and without writing files. It records the gradients that each
optimizer is about to use. Then the ranks go through it, each on its part. Where they draw random numbers, they draw
those that the copy drew, and each takes its rows (`drawing`). After the reduction all ranks hold the same gradients, so
only the last one compares. A difference beyond rounding ends the job before a weight has been updated. Losses that the
script reads are compared as well, and all ranks must make the same calls. On GPUs a process cannot be forked. There, a
process that was forked before the script began (`distrun.auto.rehearsal`) takes the place of the copy, in the first
step of the job.

So everything that the script does with its batch is tested, and not only what is known to be wrong: statistics of the
batch, positions in it, choices among samples, gradients that bypass the loss. The first batches of an optimizer are
tried, then others at growing distances, because the script may keep state from batch to batch. A copy that cannot be
made, or that ends before the end of the step, shows nothing: the step then continues as if it were not tried.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

import distrun
import distrun.torch as distrun_torch
from distrun.auto import job
from distrun.auto.comparing import TrialSchedule
from distrun.auto.refusing import refuse
from distrun.auto.rehearsal import Rehearsal
from distrun.auto.torch import generators, graph
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session, weights_of
from distrun.auto.torch.statistics import compiling
from distrun.auto.torch.trial import copying, differences, drawing, samples
from distrun.auto.torch.trial.differences import Gradients

_LINES = (
    "loss = criterion(model(x), y).mean()  # a mean or a sum over the samples, of what each sample has for itself",
    "or, where the loss is one of the whole batch:",
    "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
)
_NEAR_ZERO = 1e-3  # added to a loss that is compared, as the relative difference of a loss near 0 means nothing


class Weights(Protocol):
    """The module `optimizers`, as far as a trial needs it."""

    def compare(self) -> None:
        """Refuse the script if the ranks' weights differ."""

    def sums_of_weights(self) -> list[int]:
        """Return numbers that depend on all bits of the weights and buffers."""


class _Running:
    """A trial that is under way on this rank."""

    def __init__(
        self,
        found: copying.CopyFindings | None,
        mode: drawing.Replaying,
        losses: Sequence[tuple[graph.Signature, tuple[float, ...]]],
    ) -> None:
        """`found` are the findings of the copy, on the last rank, or None on the others; `losses` are the copy's."""
        self.found, self.mode, self.losses = found, mode, losses
        findings = found or copying.CopyFindings()
        # The next ones that the ranks' are compared with:
        self.steps, self.reads, self.backwards = iter(findings.steps), iter(findings.reads), iter(losses)


_running: _Running | None = None
_copy: copying.Copy | None = None  # in a copy
_schedule = TrialSchedule()
_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # in the batch that is tried


def begin(mine: Any, part: Part, is_new: bool, weights: Weights, collate: Callable[[], Any] | None = None) -> Any:
    """Try the step on a batch if the schedule says so. Return the batch for the script.

    It is `mine`, except in the copy, which gets the whole batch.

    Args:
        mine: this rank's part of the batch, as the DataLoader gave it.
        part: which part of the batch it is.
        is_new: whether an optimizer is new since the last batch.
        weights: the weights that are trained.
        collate: returns the whole batch as the script's own `collate_fn` makes it, or None if it cannot. None if the
            script has no `collate_fn`.
    """
    session.must_be_tried = ""
    if session.has_new_loss:
        session.has_new_loss = False
        _schedule.bring_forward()
    rehearsal, job.current.rehearsal = job.current.rehearsal, None
    try:
        if not _schedule.advance(is_new, distrun.size()) or part.is_whole or not _is_possible():
            return mine
        return _tried(mine, part, rehearsal, weights, collate)
    finally:
        if rehearsal is not None:
            rehearsal.end()


def _tried(
    mine: Any, part: Part, rehearsal: Rehearsal | None, weights: Weights, collate: Callable[[], Any] | None
) -> Any:
    is_rehearsed = rehearsal is not None and copying.is_on_gpu()
    ways = distrun.allgather_object((is_rehearsed, copying.is_on_gpu()), name="auto.trial.way")
    is_rehearsed = ways[_judge()][0]
    if any(is_on_gpu for _, is_on_gpu in ways) and not is_rehearsed:
        return mine
    weights.compare()
    whole = samples.merged(distrun_torch.allgather_object(mine, name="auto.trial"), part.sizes)
    if whole is None and collate is None:
        return mine
    found: copying.CopyFindings | None = None
    generators.of_torch.use(own=False)
    if is_rehearsed and rehearsal is not None:
        whole = _collated(collate, whole)
        if whole is not None:
            found = copying.found(rehearsal, (whole, generators.states(), weights.sums_of_weights()))
    elif distrun.rank() == _judge():
        copy = copying.begin()
        if isinstance(copy, copying.Copy):
            begin_copy(copy)
            _work_alone()
            copy.mode.is_paused = True
            whole = _collated(collate, whole)
            copy.mode.is_paused = False
            if whole is None:
                os._exit(1)
            return whole
        found = copying.found(copy)
    _begin_step(found, part)
    return mine


def _collated(collate: Callable[[], Any] | None, otherwise: Any) -> Any:
    """Return the whole batch from the script's `collate_fn`; `otherwise` if there is none, None if it fails."""
    if collate is None:
        return otherwise
    session.is_loading = True
    try:
        with generators.kept():
            whole = collate()
    except Exception:  # raised by the script's own function, which will raise it again in its turn
        return None
    finally:
        session.is_loading = False
    return otherwise if whole is None else whole


def _begin_step(found: copying.CopyFindings | None, part: Part) -> None:
    """Begin a step in which the ranks' gradients are compared with a copy's. `found` is None if the copy has failed."""
    global _running
    sent = distrun.broadcast_object(None if found is None else (found.draws, found.losses), _judge(), "auto.trial.copy")
    if sent is None:
        generators.of_torch.use(own=True)
        return
    _stepped.clear()
    generators.of_torch.use(own=False)
    compiling.run_eagerly(is_eager=True)
    mode = drawing.Replaying(sent[0], part, lambda: generators.of_torch.use(own=True))
    _running = _Running(found, mode, sent[1])
    job.current.is_tried = True
    mode.begin()


def begin_copy(copy: copying.Copy) -> None:
    """Begin the step in this process, which is the copy."""
    global _copy
    _copy = copy
    job.current.end_copy = copy.end
    _stepped.clear()
    compiling.run_eagerly(is_eager=True)


def _is_possible() -> bool:
    """Whether a copy can do what this process does. It cannot with batches of several DataLoaders at once."""
    if job.current.mode != "global" or session.other_parts():
        return False
    return compiling.can_follow() and drawing.is_possible()


def _judge() -> int:
    """Return the rank that compares: the last one, which writes no files."""
    return distrun.size() - 1


def _work_alone() -> None:
    """Detach this process, a copy, from the other ranks, so that it starts no collectives."""
    job.current.is_copy = True
    for optimizer in session.prepared:
        reducer = getattr(optimizer, "_reducer", None)
        if reducer is not None:
            reducer.leave()
    session.lose_part()


def is_running() -> bool:
    """Whether this process, a rank or a copy, is in a step that is tried."""
    return _copy is not None or _running is not None


def divisors_of_batch(signature: graph.Signature) -> tuple[float, ...] | None:
    """Return the divisors of the reductions in the copy's next loss, None without a trial, for another signature."""
    if _running is None:
        return None
    of_copy, divisors = next(_running.backwards, ((), ()))
    return divisors if of_copy == signature else None


def divisors_of_like(signature: graph.Signature) -> tuple[float, ...] | None:
    """Return the divisors of the reductions in the copy's first loss with this signature, or None if there is none."""
    losses = () if _running is None else _running.losses
    return next((divisors for of_copy, divisors in losses if of_copy == signature), None)


def before_backward(losses: Iterable[Tensor]) -> None:
    """Note, in the copy, the losses that `backward()` is called for. Check, in a rank, that all ranks call it."""
    _end_copy_that_has_left()
    if _copy is not None:
        for loss in losses:
            taken = graph.decompose(loss.grad_fn)
            _copy.found.losses.append((taken.signature, tuple(each.divisor for each in taken.reductions)))
    elif _running is not None:
        _agree("calls backward()")


def _end_copy_that_has_left() -> None:
    if _copy is not None and _copy.has_left:
        _copy.end()


def before_step(optimizer: torch.optim.Optimizer) -> None:
    """Note, in the copy, the gradients that an optimizer is about to use. Compare, in the ranks, theirs with them."""
    _end_copy_that_has_left()
    follow_draws(False)
    if not is_running() or optimizer not in session.prepared:
        return
    _stepped.add(optimizer)
    if _copy is not None:
        _copy.found.steps.append(_gradients_of([optimizer]))
        return
    assert _running is not None
    found, whole, why = _running.found, next(_running.steps, None), ""
    if found is not None:
        if whole is not None:
            why = differences.difference(whole, _gradients_of([optimizer]), found.tolerance)
        elif differences.are_finite(found.left):  # else a GradScaler has skipped the step
            why = f"there are more than {len(found.steps)} steps of optimizers in this batch"
    _agree("calls an optimizer's step()", why)


def draws_alone() -> bool:
    """Whether this rank draws its own random numbers in the body of the loop, rather than the copy's."""
    return _running is None or _running.mode.is_void


def follow_draws(follows: bool) -> None:
    """Follow draws, or stop following them within an optimizer's step, where all ranks draw the same numbers."""
    trying = _copy or _running
    if trying is not None:
        trying.mode.is_paused = not follows


def note_read(value: float) -> None:
    """Note, in the copy, that the script has read a loss of this value. Compare, in the ranks, theirs with it."""
    if _copy is not None:
        _copy.found.reads.append(value)
    elif _running is not None:
        found, expected, why = _running.found, next(_running.reads, None), ""
        if found is not None and expected is not None:
            tolerance = (abs(expected) + _NEAR_ZERO) * found.tolerance
            if not differences.are_close(expected, value, tolerance):
                why = f"a loss that the script reads is {value:.6g} by a part, and {expected:.6g} by the batch"
        _agree("reads a loss", why)


def _agree(what: str, why: str = "") -> None:
    """Refuse the script if any rank does not do `what`, a predicate of "one rank", or has a reason to refuse it."""
    assert _running is not None
    mode = _running.mode
    # A void trial drew other numbers than the copy, so its differences (`why`) show nothing. These reasons hold anyway.
    certain = mode.refused or (session.must_be_tried if mode.is_void else "")
    whats, certains, whys, are_void = zip(
        *distrun.allgather_object((what, certain, why, mode.is_void), name="auto.trial.agree"), strict=True
    )
    reason = next(filter(None, certains if any(are_void) else (*certains, *whys)), "")
    if len(set(whats)) > 1:
        reason = f"one rank {what} where another does not, as what it does depends on the samples of its part"
    if reason:
        end()
        refuse(f"what a batch comes to is not what the ranks would make of their parts: {reason}", _LINES)


def finish() -> None:
    """End the step, as the script takes its next batch. The ranks compare the gradients that no optimizer has used."""
    if _copy is not None:
        _copy.found.left = _gradients_of(session.prepared - _stepped)
    elif _running is not None:
        found, why = _running.found, ""
        if found is not None:
            why = differences.difference(found.left, _gradients_of(session.prepared - _stepped), found.tolerance)
        _agree("takes the next batch", why)
    end()


def leave_loop() -> None:
    """End a trial, as the script has left its loop. The copy ends later, as an error may have caused this."""
    if _copy is not None:
        _copy.has_left = True  # an error must reach the end of the script, where it shows that the copy failed
    else:
        end()


def end() -> None:
    """End the trial, and this process if it is the copy."""
    global _running
    if _copy is not None:
        _copy.end()
    if _running is not None:
        _running.mode.end()
        compiling.run_eagerly(is_eager=False)
        job.current.is_tried = False
        _running = None
        generators.of_torch.use(own=True)


def _gradients_of(optimizers: Iterable[torch.optim.Optimizer]) -> Gradients:
    """Return the gradients of all weights of these optimizers."""
    with torch._C._DisableTorchDispatch():
        return {
            (session.places[optimizer], place): differences.gradient_of(weight)
            for optimizer in optimizers
            for place, weight in enumerate(weights_of(optimizer))
        }
