"""The objects of a class in this process."""

from __future__ import annotations

import gc
from itertools import chain
from typing import TypeVar

_Any = TypeVar("_Any")


def instances_of(kind: type[_Any]) -> list[_Any]:
    """Return the objects of the class `kind` and its subclasses, all written in Python, while other threads run.

    The list that `gc.get_objects` returns must be freed before another thread runs: it refers to objects that other
    threads are still building, and `tuple(iterator)` fails with SystemError if anything else refers to its growing
    tuple (github.com/python/cpython/issues/59313). So only the types of the objects are taken from it, in one call of
    `list` that executes no Python code, and therefore cannot switch to another thread. Then the objects are found as
    referrers of the types.
    """
    types = list(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    kinds = [each for each in dict.fromkeys(types) if issubclass(each, kind)]
    return [each for each in gc.get_referrers(*kinds) if issubclass(type(each), kind)]
