"""The wire format: the type in which elements travel between hosts, their own or a half-precision one."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrun.runtime.backends.base import Flat
from distrun.runtime.operations.dtypes import ElementType


class WireFormat:
    """Converts flat arrays from memory to the wire and back."""

    def __init__(self, wire: ElementType | None, dtype: np.dtype[Any]) -> None:
        """`dtype` is the storage type in memory; `wire` the type on the wire, or None for the same as in memory."""
        self._wire = wire
        self.is_encoded = wire is not None
        self.dtype = dtype if wire is None else wire.storage
        """The storage type on the wire."""

    def encode(self, values: Flat) -> Flat:
        """Return the elements as they travel: `values` itself if they travel as they are, else a new array."""
        if self._wire is None:
            return values
        out = np.empty(values.size, self._wire.storage)
        self._wire.narrow(values.astype(self._wire.accumulator, copy=False), out)
        return out

    def decode(self, raw: Flat, out: Flat) -> Flat:
        """Return received elements as in memory: `raw` itself if they travel as they are, else `out`, which is
        filled."""
        if self._wire is None:
            return raw
        if out.dtype == self._wire.accumulator:
            self._wire.widen(raw, out)
        else:
            wide = np.empty(raw.size, self._wire.accumulator)
            self._wire.widen(raw, wide)
            out[:] = wide
        return out

    def decoded(self, raw: Flat, dtype: np.dtype[Any]) -> Flat:
        """Return received elements as in memory: `raw` itself if they travel as they are, else a new array."""
        return raw if self._wire is None else self.decode(raw, np.empty(raw.size, dtype))
