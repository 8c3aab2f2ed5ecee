"""The gradient reducer: after `backward()` it has reduced the gradients over all ranks.

It follows a backward pass by hooks, one per parameter, called when the parameter's gradient is complete:

- The first hook of a pass decides whether this pass reduces (not within `no_sync`, nor before the last of
  `backward_passes_per_step`) and arranges for `complete` to be called at the pass's end.
- A hook that completes a bucket sends the bucket, so that it travels while the pass continues.
- `complete` sends the other buckets, waits for all, and makes the results the parameters' gradients.

The first reduction begins with an agreement (`planning`): the ranks compare their parameters, learn which have sparse
gradients, and plan the buckets in the order in which rank 0's gradients arrived. Until then nothing is sent early. When
parameters are added or unfrozen, the next reduction begins with an agreement again.

Hooks of parameters on a GPU run in a thread that belongs to the GPU and, if the model has parameters on the CPU as
well, at the same time as their hooks (see `backward`). So every method that is called from outside takes the reducer's
lock. To wait while holding it is safe: no thread that waits for the lock does anything that another rank may wait for.

`step()` calls `complete` if something has not been reduced: the last, partial window of an accumulation, or a pass
without any hook on this rank, although other ranks may have had some. So each step takes at least one reduction on
every rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives.residuals import Residual, has_error_feedback
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.gradients import backward
from distrun.torch.gradients.bucket import Bucket
from distrun.torch.gradients.bucket_set import BucketSet
from distrun.torch.gradients.direct import DirectPasses
from distrun.torch.gradients.parameters import TrackedParameters
from distrun.torch.gradients.planning import Agreement, Settings, agree, make_buckets
from distrun.torch.gradients.residuals import merged
from distrun.torch.operations import run, submit
from distrun.torch.reductions import allreduce_
from distrun.torch.tensors import dtype_name
from distrun.tracing import layout, recording

if TYPE_CHECKING:
    from distrun.torch.gradients.tuning import BucketTuner

_reducers: WeakSet[GradientReducer] = WeakSet()


class GradientReducer:
    """Reduces the gradients of an optimizer's parameters."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        names: Mapping[Tensor, str],
        settings: Settings,
        passes: int = 1,
    ) -> None:
        """`name` is the prefix of the operations' names: the same on all ranks, and unique in this job. A parameter
        without an entry in `names` is called by its place."""
        self.passes_per_reduction = passes
        self.suppressed = False
        self.tuner: BucketTuner | None = None
        """Tunes the buckets, from the first agreement on, or None if they are not tuned."""
        self.before_agreement: Callable[[], None] | None = None
        """A function that all ranks of the job call before an agreement, even if not all of them reduce together."""
        self._name = name
        self._settings = settings
        self._parameters = TrackedParameters(optimizer, names, self)
        self._buckets = BucketSet()
        self._direct = DirectPasses(name)
        self._arrived: dict[int, None] = {}  # places, in the order in which their gradients came
        self._passes = 0  # since the last reduction
        self._is_reduced = False  # since the last step
        self._is_on_gpu = False  # whether any bucket is
        self._is_recorded = False  # whether a CUDA graph reduces the gradients when it is replayed
        self._has_stale_graph = False  # whether a graph was recorded in an earlier generation, and none since
        self._pass = backward.Pass()
        self._reduces = False  # whether the present pass reduces
        self._lock = threading.RLock()
        self._is_alone = self._finds_itself_alone()
        self.follow_parameters()
        _reducers.add(self)

    def follow_parameters(self) -> None:
        """Update the parameters for those added, unfrozen or removed since the last call."""
        with self._lock:
            if self._parameters.follow():
                self._forget_buckets()
                self._arrived = {}

    def _finds_itself_alone(self) -> bool:
        """Return whether this rank's gradients stay as they are; in an elastic job until its next generation."""
        process_set = self._settings.process_set
        return process_set.included() is False or process_set.size() == 1

    def begin_generation(self) -> None:
        """Forget the last generation: the ranks must agree again, and existing gradients belong to a step that is
        complete, or will be repeated."""
        with self._lock:
            self._pass.fail()
            self._reduces = False
            for parameter in self._parameters.tensors:
                parameter.grad = None
            self._forget_buckets()
            self._forget_tuning()
            self._direct.disconnect()
            self._arrived = {}
            self._passes = 0
            self._has_stale_graph |= self._is_recorded
            self._is_reduced = self._is_on_gpu = self._is_recorded = False
            self._is_alone = self._finds_itself_alone()

    def leave(self) -> None:
        """Stop reducing in a forked copy of a rank, and copy its gradients out of the memory that the two share."""
        self._is_alone = True
        for parameter in self._parameters.tensors:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def reduce_over(self, process_set: ProcessSet) -> None:
        """Reduce over the ranks of `process_set` from the next backward pass on, and drop existing gradients."""
        self._settings = replace(self._settings, process_set=process_set)
        self.begin_generation()

    # A backward pass -------------------------------------------------------------------------------------------------

    def arrive(self, parameter: int) -> None:
        """Note that the gradient of the parameter with this id is complete."""
        if self._is_alone:
            return
        task = backward.current_task()
        with self._lock:
            if task in self._pass.tasks or self._enter_task(task):
                self._arrive(parameter)

    def _arrive(self, parameter: int) -> None:
        place = self._parameters.places.get(parameter)
        if not self._reduces or place is None:
            return
        if not self._buckets.is_agreed:
            self._arrived[place] = None
            if not self._pass.is_end_arranged and len(self._arrived) == len(self._parameters.tensors):
                self._pass.arrange_end(self._end_pass)
            return
        bucket = self._buckets.home[place]
        waiting_for = bucket.waiting_for
        try:
            waiting_for.remove(place)
        except KeyError:
            raise UsageError(
                f"the gradient of {self._parameters.names[place]} changed after it was sent, by a second backward pass "
                "inside the first (torch.utils.checkpoint with use_reentrant=True of a shared parameter?): pass "
                "use_reentrant=False, or run backward() under optimizer.no_sync() and call optimizer.synchronize() "
                "after it"
            ) from None
        bucket.take(place)
        if not waiting_for:
            for complete in self._direct.next(bucket, self._buckets):
                self._send(complete)
            if not self._pass.is_end_arranged and self._buckets.are_complete():
                self._pass.arrange_end(self._end_pass)

    def _send(self, bucket: Bucket) -> None:
        self._buckets.unsent -= 1
        bucket.send(self._start)

    def _start(self, handle: Handle) -> Handle:
        handle.caller = self._pass.call
        if self._direct.is_direct():
            return self._direct.start(handle)
        return submit(handle) if self._buckets.unsent else run(handle)  # after the last bucket the caller only waits

    def _enter_task(self, task: int) -> bool:
        """Enter an unknown graph task: a new backward pass, or one nested in the present pass.

        Return False if the task belongs to a pass that has failed, but whose thread still runs.
        """
        place = self._pass.position(task)
        if place is None:
            return False
        if not self._pass.is_at(place):
            self.abandon()
            self._pass.begin(place.call)
            self._begin_pass()
        self._pass.add(task, place, self._end_pass)
        return True

    def _begin_pass(self) -> None:
        self._passes += 1
        if recording.ring is not None:
            recording.ring.enter(layout.BACKWARD, self._is_on_gpu)  # in any of the threads that compute it
        self._reduces = not self.suppressed and self._passes >= self.passes_per_reduction
        if self._reduces:
            self._prepare()
            self._arrived = {}

    def _end_pass(self) -> None:
        with self._lock:
            if self._reduces:
                self.complete()
            self._close_pass()

    def _close_pass(self) -> None:
        self._pass.close()
        self._direct.close()
        self._reduces = False

    def abandon(self) -> None:
        """End a backward pass that failed half-way, and drop its gradients.

        Other ranks may have completed theirs. So that every pass that reduces is one reduction of every bucket on every
        rank, this rank takes part in the remaining reductions, with gradients marked as invalid.
        """
        if not self._pass.is_open:
            return
        with self._lock:
            reduces, self._reduces = self._reduces, False
            self._pass.fail()
            if reduces:
                if not self._buckets.is_agreed:
                    self._agree()
                self._direct.forfeit(self._buckets, self._start)

    # Reducing --------------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether there may be gradients that have not been reduced. A replayed CUDA graph calls no hooks, but reduces
        its gradients itself."""
        if self._is_alone:
            return False
        return self._passes > 0 or not (self._is_reduced or self._is_recorded)

    def forget(self, are_used: bool = False) -> None:
        """Prepare for new gradients. The existing ones have been used (`are_used`), or are dropped."""
        self._is_reduced = False
        self._passes = 0
        if are_used:
            self._buckets.keep()

    def complete(self) -> None:
        """Reduce the gradients that have not been sent yet, and wait for all of them. On the GPU, the calling thread's
        stream waits.

        Raises:
            MismatchError: the ranks do not have the same parameters.
            CollectiveError: backward() failed on another rank.
        """
        with self._lock:
            if not self._reduces:  # not at the end of a backward pass that reduces
                if self._has_stale_graph and not self._passes:
                    raise UsageError(
                        "the CUDA graph that reduces these gradients was captured before ranks came or went, and with "
                        "it the connections of then: let it go, run some whole steps, and capture it again"
                    )
                self._prepare()
            buckets = self._buckets
            if not buckets.is_agreed:
                self._agree()
            try:
                for bucket in buckets:
                    if not bucket.is_sent:
                        self._send(bucket)
                self._direct.end(self._pass.call)
                for bucket in buckets:
                    bucket.receive()
            except BaseException:
                with suppress(Exception):  # the first error is the one to raise
                    self._direct.forfeit(buckets, self._start)
                raise
            finally:
                buckets.reset()
                self._close_pass()
            self._is_reduced = True
            self._passes = 0
            if self._is_on_gpu and cuda.is_capturing():
                self._is_recorded, self._has_stale_graph = True, False

    def _prepare(self) -> None:
        """Prepare for a pass that reduces."""
        self._check_again()
        self.follow_parameters()
        tuner = self.tuner
        if tuner is not None and self._buckets.is_agreed:
            settings = tuner.due()
            if settings is not None:
                with tuner.uncounted():
                    self._use(settings, tuner.agreement)
        self._direct.begin(self._buckets, self._pass.call)

    def _agree(self) -> None:
        """Plan the buckets together with the other ranks."""
        self._forget_tuning()
        if self.before_agreement is not None:
            self.before_agreement()
        agreement = agree(self._name, self._parameters, self._settings, self._arrived)
        if any(agreement.note):  # rank 0 wants tuning
            from distrun.torch.gradients.tuning import BucketTuner

            self.tuner = BucketTuner(self._name, self._parameters, self._settings, agreement)
        self._use(self._settings, agreement)
        self._direct.connect(agreement, self._settings, self._buckets)
        self._is_on_gpu = any(cuda.kind(parameter) == cuda.CUDA for parameter in self._parameters.tensors)
        self._is_recorded = False

    def _use(self, settings: Settings, agreement: Agreement) -> None:
        """Make the buckets of these settings and use them for all later passes."""
        self._settings = settings
        self._forget_buckets()  # first, so that their memory can serve the new ones
        self._buckets.use(make_buckets(self._name, self._parameters, settings, agreement))
        self._parameters.count_in(self._buckets)

    def _forget_buckets(self) -> None:
        self._parameters.count_in(())
        self._buckets.forget()

    def _forget_tuning(self) -> None:
        tuner, self.tuner = self.tuner, None
        if tuner is not None:
            tuner.retire()
            self._settings = tuner.default

    def _check_again(self) -> None:
        """Refuse a second reduction before `step()` for sums. (Averages, with the gradients added since, may be
        averaged again.)"""
        if not self._is_reduced:
            return
        for bucket in self._buckets.received():
            if self._settings.op is not Average:
                raise UsageError(
                    f"a second backward() before step() would reduce gradients twice, which op={self._settings.op} "
                    "does not allow: run the earlier ones under optimizer.no_sync(), or set backward_passes_per_step"
                )
            bucket.keep()

    # What was lost ---------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[Tensor, Residual]:
        """Return the residuals by parameter. The tensors are not changed later."""
        return self._buckets.residuals()

    def load_residuals(self, residuals: Mapping[Tensor, Residual]) -> None:
        """Replace this rank's residuals by these."""
        with self._lock:
            self._buckets.load_residuals(residuals)

    def merged_residuals(self) -> dict[Tensor, Residual]:
        """Return the average of all ranks' residuals, which any number of ranks can load. Empty without error feedback.
        All ranks of the process set call this.

        Raises:
            CollectiveError: as `distrun.torch.allreduce` raises.
        """
        if self._is_alone:
            return {}
        self.abandon()  # other ranks may still wait for the rest of a pass
        wire = self._settings.wire
        kept = [each for each in self._parameters.tensors if has_error_feedback(wire, dtype_name(each), each.shape)]
        return merged(kept, self.residuals(), f"{self._name}.losses", self._settings.process_set)

    # Helping the optimizer -------------------------------------------------------------------------------------------

    @contextmanager
    def suppress(self) -> Iterator[None]:
        """Make backward passes reduce nothing within this context."""
        before, self.suppressed = self.suppressed, True
        try:
            yield
        finally:
            self.suppressed = before

    def reduce_loss(self, loss: Tensor | float | None) -> Tensor | float | None:
        """Return the loss, reduced over the ranks, so that an optimizer that uses it does the same on all of them."""
        if loss is None or self._is_alone:
            return loss
        value = loss if isinstance(loss, Tensor) else torch.tensor(loss, dtype=torch.float64, device=cuda.CPU)
        name, op, process_set = f"{self._name}.loss", self._settings.op, self._settings.process_set
        reduced = allreduce_(value.detach().clone(), None, name, op, process_set=process_set)
        return reduced if isinstance(loss, Tensor) else reduced.item()


def _begin_generation() -> None:
    for reducer in list(_reducers):
        reducer.begin_generation()


world.on_joining(_begin_generation)
