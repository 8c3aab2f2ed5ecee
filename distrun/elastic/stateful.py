"""The part for objects with `state_dict` and `load_state_dict`, such as those that torch and `distrun.data` make."""

from __future__ import annotations

import copy
from typing import Any

from distrun.elastic.part import Part


def is_stateful(value: Any) -> bool:
    """Return whether a value has `state_dict` and `load_state_dict`."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict") and not isinstance(value, type)


class StatefulPart(Part):
    """The part for an object with `state_dict` and `load_state_dict`. Its state is pickled.

    If it has a method `advance` without arguments, as positions in the data have, that is called at each step boundary.
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
        self._load(copy.deepcopy(self._saved))

    def advance(self) -> None:
        """Call `advance` of the object, if there is one."""
        if hasattr(self.value, "advance"):
            self.value.advance()

    def stay(self) -> None:
        """Have a position in the data divide what is left among the new ranks, as loading does on the other ranks."""
        if hasattr(self.value, "advance"):
            self._load(self.value.state_dict())

    def describe(self) -> Any:
        """Return its state_dict."""
        return self.value.state_dict()

    def adopt(self, description: Any) -> None:
        """Keep the donor's state_dict until `complete`."""
        self._description = description

    def complete(self) -> None:
        """Load the donor's state_dict."""
        self._load(self._description)
        self._description = None

    def _load(self, state: Any) -> None:
        self.value.load_state_dict(state)
