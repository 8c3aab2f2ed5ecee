"""Transit: the form in which elements travel between hosts, which is their own or a half-precision one."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.operations.dtypes import ElementType


class WireFormat:
    """From memory to the wire and back; flat arrays."""

    def __init__(self, wire: ElementType | None, dtype: np.dtype[Any]) -> None:
        """`dtype` is that of the elements in memory; `wire` None: they travel as they are."""
        self._wire = wire
        self.is_encoded = wire is not None
        self.dtype = dtype if wire is None else wire.storage
        """Of what travels."""

    def encode(self, values: Flat) -> Flat:
        """What is to travel; the values themselves when they travel as they are."""
        if self._wire is None:
            return values
        out = np.empty(values.size, self._wire.storage)
        self._wire.narrow(values.astype(self._wire.accumulator, copy=False), out)
        return out

    def decode(self, raw: Flat, out: Flat) -> Flat:
        """What has travelled, in `out` unless it travels as it is."""
        if self._wire is None:
            return raw
        if out.dtype == self._wire.accumulator:
            self._wire.widen(raw, out)
        else:
            wide = np.empty(raw.size, self._wire.accumulator)
            self._wire.widen(raw, wide)
            out[:] = wide
        return out

    def widened(self, raw: Flat, dtype: np.dtype[Any]) -> Flat:
        """The same in a new array."""
        return raw if self._wire is None else self.decode(raw, np.empty(raw.size, dtype))
