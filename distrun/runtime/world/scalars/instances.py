"""Finding the objects that a script has created of a class that it has imported, without the script's cooperation."""

from __future__ import annotations

import sys
import weakref
from functools import wraps
from typing import Any

from distrun.host.instances import instances_of


class Instances:
    """The objects of some classes, from the time when a class's module is imported."""

    def __init__(self, *places: tuple[str, str]) -> None:
        """Args: the names of modules, which are not imported for this purpose, and of a class in each."""
        self._places = list(places)
        self._found: list[weakref.ref[Any]] = []

    def all(self) -> list[Any]:
        """Return the objects that exist, the oldest first."""
        for place in list(self._places):
            module = sys.modules.get(place[0])
            kind = getattr(module, place[1], None)  # None while the module is being imported
            if isinstance(kind, type):
                self._places.remove(place)
                self._watch(kind)
        self._found = [one for one in self._found if one() is not None]
        return [found for one in self._found if (found := one()) is not None]

    def _watch(self, kind: Any) -> None:
        plain = kind.__init__

        @wraps(plain)
        def noted(made: Any, *arguments: Any, **options: Any) -> None:
            plain(made, *arguments, **options)
            self._found.append(weakref.ref(made))

        kind.__init__ = noted
        # Once, after patching: the objects created before.
        self._found += map(weakref.ref, instances_of(kind))
