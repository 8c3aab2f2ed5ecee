"""The buckets of a reducer, from one agreement of the ranks to the next, and what gradients have lost in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from torch import Tensor

from distrun.errors import CollectiveError
from distrun.runtime.collectives.residuals import Residual
from distrun.torch.gradients.bucket import Bucket, Start


class BucketSet:
    """The buckets; none until the ranks have agreed on them."""

    def __init__(self) -> None:
        self.is_agreed = False
        """Whether the ranks have agreed since the parameters, or the ranks, were others."""
        self.unsent = 0
        """The buckets that have not been sent in this pass."""
        self.home: list[Bucket] = []
        """The buckets that parameters belong to, by place."""
        self._buckets: Sequence[Bucket] = ()
        self._residuals: dict[Tensor, Residual] = {}  # while there are no buckets that have them

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def use(self, buckets: Sequence[Bucket]) -> None:
        """Take these, to which what was lost in others goes over."""
        residuals, self._residuals = self.residuals(), {}
        self.is_agreed, self.unsent, self._buckets = True, len(buckets), buckets
        homes = {place: bucket for bucket in buckets for place in bucket.places}
        self.home = [homes[place] for place in range(len(homes))]
        if residuals:
            self._hand_out(residuals)

    def forget(self) -> None:
        """Let the buckets go, but not what was lost in them."""
        self._residuals = self.residuals()
        self.is_agreed, self.unsent, self._buckets, self.home = False, 0, (), []

    def reset(self) -> None:
        """Make ready for the next pass."""
        for bucket in self._buckets:
            bucket.reset()
        self.unsent = len(self._buckets)

    def received(self) -> Iterator[Bucket]:
        """Yield those of which a parameter still has the gradient that was received."""
        for bucket in self._buckets:
            if any(each.grad is not None and bucket.holds(each.grad) for each in bucket.parameters):
                yield bucket

    def forfeit(self, start: Start) -> None:
        """Forfeit what has not been sent, so that the other ranks do not wait for it, and drop the rest.

        Raises:
            Exception: the first one of a bucket that could not be forfeited; all others were.
        """
        errors: list[Exception] = []
        for bucket in self._buckets:
            if not bucket.is_sent:
                try:
                    bucket.forfeit(start)
                except Exception as error:
                    errors.append(error)
        self._drain()
        if errors:
            raise errors[0]

    def _drain(self) -> None:
        """Wait for what is in flight, whatever its outcome: nothing may be sent again before that."""
        for bucket in self._buckets:
            if bucket.is_sent:
                with suppress(CollectiveError):
                    bucket.drop()
        self.reset()

    def keep(self) -> None:
        """The gradients that were received are used; see `Bucket.keep`."""
        for bucket in self._buckets:
            bucket.keep()

    # What was lost ----------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[Tensor, Residual]:
        """Return what is to be made up for, by parameter. The tensors are not changed later."""
        residuals = dict(self._residuals)
        for bucket in self._buckets:
            residuals |= {bucket.parameters[index]: residual for index, residual in bucket.residuals().items()}
        return residuals

    def load_residuals(self, residuals: Mapping[Tensor, Residual]) -> None:
        """Make up for these, instead of what was lost here."""
        if self.is_agreed:
            self._hand_out(residuals)
        else:
            self._residuals = dict(residuals)

    def _hand_out(self, residuals: Mapping[Tensor, Residual]) -> None:
        for bucket in self._buckets:
            bucket.load_residuals(
                {index: residuals[each] for index, each in enumerate(bucket.parameters) if each in residuals}
            )
