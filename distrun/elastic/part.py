"""The parts of a state: one for each thing that is kept and sent in a way of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Part:
    """One thing that a state is made of. A framework's face has a kind of its own for models, optimizers and so on.

    When ranks take the state of another, the donor describes each part, and its tensors follow by themselves:

    ::

        donor:                  describe() -> description        tensors() -> what is sent
        any other rank:         adopt(description)               tensors() -> what is overwritten     complete()

    Tensors are sent only if some rank has others; the description always is, and so `complete` follows in any case.
    """

    def save(self) -> None:
        """Keep a copy of it, in place of the one before."""
        raise NotImplementedError(f"{type(self).__name__} has no save: let it keep a copy")

    def restore(self) -> None:
        """Go back to the copy that `save` has kept."""
        raise NotImplementedError(f"{type(self).__name__} has no restore: let it go back to the copy")

    def advance(self) -> None:
        """Note that the script has come to a step boundary: once per step, so it should cost nothing."""
        self.mark()

    def mark(self) -> None:
        """Note that it is as at a step boundary: the script has come to one, or it has taken the donor's state."""

    def is_clean(self) -> bool:
        """Return whether it is as it was when `mark` was called last, as far as the weights are concerned."""
        return True

    def is_usable(self) -> bool:
        """Return whether training can go on from it as it is, though it need not be as at a step boundary."""
        return self.is_clean()

    def abandon(self) -> None:
        """Drop what is left of a step that failed half-way, such as gradients."""

    def describe(self) -> Any:
        """Return all of it but its tensors, for which their number, shapes and dtypes stand: something to pickle."""
        raise NotImplementedError(f"{type(self).__name__} has no describe: let it return all but its tensors")

    def adopt(self, description: Any) -> None:
        """Prepare to become what the donor has described: make room for tensors that are not there yet.

        Raises:
            UsageError: it cannot, since this rank's script has made something else than the donor's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no adopt: let it prepare for the donor's tensors")

    def tensors(self) -> Sequence[Any]:
        """Return the tensors to send or, after `adopt`, to overwrite: the same numbers and sizes on all ranks."""
        return ()

    def complete(self) -> None:
        """Become what the donor has: called after `adopt`, when all tensors have come."""

    def stay(self) -> None:
        """Go on from where it is, as do the ranks that have taken it from here: called on the donor."""

    def meet(self) -> None:
        """Do what takes all ranks, now that each has the donor's state; collectives are allowed here."""
