"""The objects of a class that this process has."""

from __future__ import annotations

import gc
from itertools import chain
from typing import TypeVar

_Any = TypeVar("_Any")


def instances_of(kind: type[_Any]) -> list[_Any]:
    """Return the objects of a class and of its subclasses, all written in Python, while other threads go on.

    The list that `gc.get_objects` returns must be gone before another thread runs: it refers to what others have half
    made, and `tuple(iterator)` fails with SystemError if anything refers to its tuple as it grows
    (github.com/python/cpython/issues/59313). So all that is taken from it are the objects' types, in one call of
    `list`, in which no line of Python runs and hence no other thread; the objects then are found as what refers to the
    types.
    """
    types = list(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    kinds = [each for each in dict.fromkeys(types) if issubclass(each, kind)]
    return [each for each in gc.get_referrers(*kinds) if issubclass(type(each), kind)]
