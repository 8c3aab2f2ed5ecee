"""The base of the parts of a state: a part keeps, sends and restores one thing, such as a model or an optimizer.

The part for objects with `state_dict` and `load_state_dict` is here too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


class Part:
    """One part of a state. The frameworks' faces extend this class for models, optimizers and so on.

    When ranks take the state of another, the donor describes each part, and the tensors are sent separately:

    ::

        donor:                  describe() -> description        tensors() -> what is sent
        any other rank:         adopt(description)               tensors() -> what is overwritten     complete()

    Descriptions are always sent, and `complete` is always called. Tensors are sent only if those of some rank differ.
    """

    def save(self) -> None:
        """Keep a copy, in place of the one before."""
        raise NotImplementedError(f"{type(self).__name__} has no save: let it keep a copy")

    def restore(self) -> None:
        """Go back to the copy that `save` has kept."""
        raise NotImplementedError(f"{type(self).__name__} has no restore: let it go back to the copy")

    def advance(self) -> None:
        """Note that the script is at a step boundary. Called once per step, so it should cost nothing."""
        self.mark()

    def mark(self) -> None:
        """Note that its state is one of a step boundary: the script is at one, or the donor's state was taken."""

    def is_clean(self) -> bool:
        """Return whether its weights have not changed since `mark` was called last."""
        return True

    def is_usable(self) -> bool:
        """Return whether training can continue from its state, even one in the middle of a step."""
        return self.is_clean()

    def abandon(self) -> None:
        """Drop what is left of a step that failed half-way, such as gradients."""

    def describe(self) -> Any:
        """Return something to pickle: everything but its tensors, with their number, shapes and dtypes in their place.

        Called on the donor, at the start of each `sync`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no describe: let it return all but its tensors")

    def adopt(self, description: Any) -> None:
        """Prepare for the donor's state, such as by making room for tensors that do not exist yet.

        Raises:
            UsageError: it cannot, because this rank's script has made something else than the donor's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no adopt: let it prepare for the donor's tensors")

    def tensors(self) -> Sequence[Any]:
        """Return the tensors to send or, after `adopt`, to overwrite: as many and of the same sizes on all ranks."""
        return ()

    def complete(self) -> None:
        """Take the donor's state. Called after `adopt`, when all tensors have arrived."""

    def stay(self) -> None:
        """Keep its own state, but do what loading it does on the other ranks. Called on the donor."""

    def meet(self) -> None:
        """Called on all ranks when each has the donor's state. Collectives are allowed here."""


def is_stateful(value: Any) -> bool:
    """Return whether a value has `state_dict` and `load_state_dict`."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


class StatefulPart(Part):
    """The part for an object with `state_dict` and `load_state_dict`. Its state is pickled.

    If it has a method `advance` without arguments, as positions in the data have, that is called at each step boundary.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._saved: Any = None
        self._description: Any = None

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self._load(copy.deepcopy(self._saved))

    def advance(self) -> None:
        if hasattr(self.value, "advance"):
            self.value.advance()

    def stay(self) -> None:
        """Have a position in the data divide what is left among the new ranks, as loading does on the other ranks."""
        if hasattr(self.value, "advance"):
            self._load(self.value.state_dict())

    def describe(self) -> Any:
        return self.value.state_dict()

    def adopt(self, description: Any) -> None:
        self._description = description

    def complete(self) -> None:
        self._load(self._description)
        self._description = None

    def _load(self, state: Any) -> None:
        self.value.load_state_dict(state)
