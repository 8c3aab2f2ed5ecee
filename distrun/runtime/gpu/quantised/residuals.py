"""The residuals of quantisation in GPU memory, which `Feedback` keeps for operations on GPU buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.gpu.buffers import ERROR_FEEDBACK, note_held
from distrun.runtime.gpu.packing import Packer
from distrun.tensor_fusion.device_packing import Piece

_FLOAT32 = np.dtype(np.float32)
_DEFAULT_STREAM = 0


class DeviceResiduals:
    """A flat float32 array of residuals for `Feedback`. Slices are addresses. numpy waits for the device and copies."""

    def __init__(self, packer: Packer, count: int, stream: int) -> None:
        """The array is filled with zeros, for use on `stream`. The caller is inside `driver.use`."""
        self.size = count
        self._driver = packer.driver
        self._buffer = self._driver.allocate(count, _FLOAT32, stream)
        note_held(ERROR_FEEDBACK, self._buffer.nbytes, self)
        packer.copy([Piece(0, self._buffer.pointer, count)], "float32", "float32", 1.0, stream)
        self.written = self._driver.record(stream)
        """The event after the last work that writes the array."""

    def __getitem__(self, part: slice) -> int:
        """Return the address of the first element of a part."""
        start: int = part.start
        return self._buffer.pointer + start * _FLOAT32.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return a copy in host memory. Another thread than the one that executes operations may call this."""
        driver, array = self._driver, np.empty(self.size, np.float32)
        driver.synchronize(self.written)
        with driver.use:
            driver.copy(array.ctypes.data, self._buffer.pointer, array.nbytes, _DEFAULT_STREAM)
            driver.synchronize(driver.record(_DEFAULT_STREAM))
        return array if dtype is None else array.astype(dtype, copy=False)
