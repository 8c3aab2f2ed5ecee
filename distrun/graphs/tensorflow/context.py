"""One run of a kernel: TensorFlow's memory as arrays, and the status that is returned to TensorFlow."""

from __future__ import annotations

from ctypes import byref, c_char, c_int, c_int64, c_void_p
from typing import Any

import numpy as np
import tensorflow as tf

from distrun.graphs.prepared import Flat, storage_of
from distrun.graphs.tensorflow.c_api import Library
from distrun.graphs.tensorflow.errors import status_code
from distrun.runtime.operations.request import Shape


class Context:
    """One run of a kernel: its inputs and outputs as flat storage arrays."""

    def __init__(self, api: Library, context: int) -> None:
        self._api = api
        self._context = context
        self._status = api.NewStatus()
        self._outputs: list[int] = []
        self._slot = c_void_p()
        self.dtypes: list[str] = []
        self.shapes: list[Shape] = []
        self.inputs: list[Flat] = []

    def read(self, index: int) -> int:
        """Read an input into `dtypes`, `shapes` and `inputs`. Return the number of its type.

        Its memory stays valid until the kernel is done.
        """
        api = self._api
        api.GetInput(self._context, index, byref(self._slot), self._status)
        tensor = self._slot.value
        if tensor is None:
            api.check(self._status)
        number: int = api.TensorType(tensor)
        name, storage = _TYPES[number]
        self.dtypes.append(name)
        self.shapes.append(tuple([api.Dim(tensor, axis) for axis in range(api.NumDims(tensor))]))
        self.inputs.append(_view(api.TensorData(tensor), api.TensorByteSize(tensor), storage))
        api.DeleteTensor(tensor)  # a reference to it would keep TensorFlow from reusing its memory for an output
        return number

    def output_like(self, index: int) -> Flat:
        """Return an output like the input of the same index, which `read` has just read.

        It is the input's memory if no other node needs that.
        """
        shape = self.shapes[index]
        extents = (c_int64 * len(shape))(*shape)
        candidates, chosen = (c_int * 1)(index), c_int(-1)
        output = self._api.ForwardInputOrAllocateOutput(
            self._context, candidates, 1, index, extents, len(shape), byref(chosen), self._status
        )
        given = self.inputs[index]
        if output is None or chosen.value != index:
            return self._keep(output, given.dtype)
        self._outputs.append(output)
        return given

    def allocate(self, index: int, number: int, shape: Shape, dtype: np.dtype[Any]) -> Flat:
        """Return a new output."""
        extents = (c_int64 * len(shape))(*shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        output = self._api.AllocateOutput(self._context, index, number, extents, len(shape), nbytes, self._status)
        return self._keep(output, dtype)

    def _keep(self, output: int | None, dtype: np.dtype[Any]) -> Flat:
        if output is None:
            self._api.check(self._status)
            raise MemoryError("TensorFlow has no memory for an output")
        self._outputs.append(output)
        return _view(self._api.TensorData(output), self._api.TensorByteSize(output), dtype)

    def fail(self, error: BaseException) -> None:
        """Set `error` as the failure of the kernel."""
        message = f"{type(error).__name__}: {error}"
        self._api.SetStatus(self._status, status_code(error), message.encode())
        self._api.OpKernelContext_Failure(self._context, self._status)

    def close(self) -> None:
        """Release the outputs to TensorFlow. No method may be called afterwards."""
        for output in self._outputs:
            self._api.DeleteTensor(output)
        self._api.DeleteStatus(self._status)


def _view(address: int | None, nbytes: int, dtype: np.dtype[Any]) -> Flat:
    if not nbytes or address is None:
        return np.empty(0, dtype)
    return np.frombuffer((c_char * nbytes).from_address(address), dtype)  # type: ignore[call-overload]


_TYPES: dict[int, tuple[str, np.dtype[Any]]] = {
    dtype.as_datatype_enum: (dtype.name, storage_of(dtype.name))
    for dtype in (
        *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    )
}
