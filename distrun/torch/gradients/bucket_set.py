"""The buckets of a reducer, from one agreement of the ranks to the next, and their residuals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from distrun.errors import CollectiveError
from distrun.runtime.collectives.residuals import Residual
from distrun.torch.gradients.bucket import Bucket, Start


class BucketSet:
    """The buckets of a reducer; none until the ranks have agreed on them."""

    def __init__(self) -> None:
        self.is_agreed = False
        """Whether the ranks have agreed on these buckets since the parameters, or the ranks, changed."""
        self.unsent = 0
        """The number of buckets that have not been sent in this pass."""
        self.home: list[Bucket] = []
        """The bucket of each parameter, by its place."""
        self._buckets: Sequence[Bucket] = ()
        self._residuals: dict[Tensor, Residual] = {}  # while there are no buckets that have them

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def use(self, buckets: Sequence[Bucket]) -> None:
        """Use `buckets`, and hand them the residuals of the former ones."""
        residuals, self._residuals = self.residuals(), {}
        self.is_agreed, self.unsent, self._buckets = True, len(buckets), buckets
        homes = {place: bucket for bucket in buckets for place in bucket.places}
        self.home = [homes[place] for place in range(len(homes))]
        if residuals:
            self._hand_out(residuals)

    def forget(self) -> None:
        """Drop the buckets, but keep their residuals."""
        self._residuals = self.residuals()
        self.is_agreed, self.unsent, self._buckets, self.home = False, 0, (), []

    def are_complete(self) -> bool:
        """Return whether all gradients of this pass are complete."""
        return not any(bucket.waiting_for for bucket in self._buckets)

    def reset(self) -> None:
        """Prepare for the next pass."""
        for bucket in self._buckets:
            bucket.reset()
        self.unsent = len(self._buckets)

    def received(self) -> Iterator[Bucket]:
        """Yield the buckets with a parameter that still has the gradient that was received."""
        for bucket in self._buckets:
            if any(each.grad is not None and bucket.holds(each.grad) for each in bucket.parameters):
                yield bucket

    def forfeit(self, start: Start) -> None:
        """Forfeit the buckets that have not been sent, so that the other ranks do not wait for them, and drop the rest.

        Raises:
            Exception: the first error of a bucket that could not be forfeited. All others were.
        """
        errors: list[Exception] = []
        for bucket in self._buckets:
            if not bucket.is_sent:
                try:
                    bucket.forfeit(start)
                except Exception as error:
                    errors.append(error)
        self.drain()
        if errors:
            raise errors[0]

    def drain(self) -> None:
        """Wait for all pending reductions and ignore their errors: no bucket may be sent again before that."""
        for bucket in self._buckets:
            if bucket.is_sent:
                with suppress(CollectiveError):
                    bucket.drop()
        self.reset()

    def keep(self) -> None:
        """Note that the received gradients are used. See `Bucket.keep`."""
        for bucket in self._buckets:
            bucket.keep()

    # What was lost ----------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[Tensor, Residual]:
        """Return the residuals by parameter. The tensors are not changed later."""
        residuals = dict(self._residuals)
        for bucket in self._buckets:
            residuals |= {bucket.parameters[index]: residual for index, residual in bucket.residuals().items()}
        return residuals

    def load_residuals(self, residuals: Mapping[Tensor, Residual]) -> None:
        """Replace the residuals by these."""
        if self.is_agreed:
            self._hand_out(residuals)
        else:
            self._residuals = dict(residuals)

    def _hand_out(self, residuals: Mapping[Tensor, Residual]) -> None:
        for bucket in self._buckets:
            bucket.load_residuals(
                {index: residuals[each] for index, each in enumerate(bucket.parameters) if each in residuals}
            )
