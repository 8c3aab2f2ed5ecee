"""Parts that tell their state by themselves, as what torch and `distrun.data` make does."""

from __future__ import annotations

import copy
from typing import Any

from distrun.elastic.part import Part


def is_stateful(value: Any) -> bool:
    """Return whether a value has `state_dict` and `load_state_dict`."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


def advance(value: Any) -> None:
    """Tell a value that a step is done, if it wants to know: the place in the data does."""
    tell = getattr(value, "advance", None)
    if tell is not None:
        tell()


def stay(value: Any) -> None:
    """Have a place in the data, which has `advance`, deal out what is left, as it does on the ranks that load it."""
    if hasattr(value, "advance"):
        value.load_state_dict(value.state_dict())


class StatefulPart(Part):
    """The part for an object with `state_dict` and `load_state_dict`, whose state is pickled.

    If it has a method `advance` without arguments, that is called at each step boundary.
    """

    def __init__(self, value: Any) -> None:
        """`value` is the object."""
        self.value = value
        self._saved: Any = None
        self._description: Any = None

    def save(self) -> None:
        """Keep a copy of its state_dict."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to the copy."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def advance(self) -> None:
        """Tell it that a step is done."""
        advance(self.value)

    def stay(self) -> None:
        """Deal out what is left, if it is a place in the data."""
        stay(self.value)

    def describe(self) -> Any:
        """Return its state_dict."""
        return self.value.state_dict()

    def adopt(self, description: Any) -> None:
        """Note the donor's."""
        self._description = description

    def complete(self) -> None:
        """Load the donor's."""
        self.value.load_state_dict(self._description)
        self._description = None
