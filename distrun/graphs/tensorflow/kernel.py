"""Collectives as operations of TensorFlow, registered while the program runs: inputs and outputs are TensorFlow's
memory.

There are two operations. `DistrunReduce` (allreduce, broadcast) has outputs like its inputs, and works in place where
nobody else needs an input. `DistrunMoveRows` (allgather, alltoall, reducescatter) finds out the first dimension of its
outputs when it runs. Both carry the collective as a text, so a graph with them can be stored, and are stateful: in a
tf.function they run in the order in which they were traced.

TensorFlow runs kernels on threads of its own. A kernel stands for a node and may run on several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_int, c_int32, c_int64, c_void_p, create_string_buffer
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from distrun.graphs import arrays
from distrun.graphs.prepared import Flat, Prepared, prepare, storage_of
from distrun.graphs.tensorflow.c_api import COMPUTE, CREATE, DELETE, INFER_SHAPES, INTERNAL, Library
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.request import Shape

PROBE = "probe"
"""The kind of a collective that does nothing but copy: for finding out whether all this works."""

_ATTRIBUTE = b"collective"
_REDUCE = "DistrunReduce"
_MOVE_ROWS = "DistrunMoveRows"


class Kernel:
    """The kernel of one node, whose tensors have the same types and shapes most of the time."""

    def __init__(self, collective: Call) -> None:
        self.collective = collective
        self._last: tuple[tuple[str, ...], tuple[Shape, ...], Prepared | None] = (), (), None

    def prepare(self, dtypes: Sequence[str], shapes: Sequence[Shape]) -> Prepared:
        """The collective for these tensors."""
        known, known_shapes, prepared = self._last
        names, extents = tuple(dtypes), tuple(shapes)
        if prepared is None or known != names or known_shapes != extents:
            prepared = prepare(self.collective, names, extents)
            self._last = names, extents, prepared
        return prepared


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
        """Note an input. Returns the number of its type; the memory stays valid until the kernel returns."""
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
        api.DeleteTensor(tensor)  # or it could not be worked on in place: somebody would need it
        return number

    def output_like(self, index: int) -> Flat:
        """An output like the input of the same index, which `read` has noted last: the input's memory if nobody needs
        it."""
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
        """A new output."""
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
        """Let TensorFlow know."""
        message = f"{type(error).__name__}: {error}"
        self._api.SetStatus(self._status, INTERNAL, message.encode())
        self._api.OpKernelContext_Failure(self._context, self._status)

    def close(self) -> None:
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


# Running --------------------------------------------------------------------------------------------------------------


def _run_reduce(api: Library, context: Context, kernel: Kernel, tensors: int) -> None:
    outputs = []
    for index in range(tensors):
        context.read(index)
        outputs.append(context.output_like(index))
    if kernel.collective.kind == PROBE:
        for source, target in zip(context.inputs, outputs, strict=True):
            target[:] = source
        return
    kernel.prepare(context.dtypes, context.shapes).reduce(context.inputs, outputs)


def _run_move_rows(api: Library, context: Context, kernel: Kernel, tensors: int) -> None:
    """The last input says how many rows to send where, the last output how many came from where."""
    numbers = [context.read(index) for index in range(tensors)]
    splits = context.inputs.pop()
    dtypes, shapes = context.dtypes[:-1], context.shapes[:-1]
    results, received = arrays.gather(
        kernel.prepare(dtypes, shapes), shapes, context.inputs, splits if splits.size else None, kernel.collective
    )
    for index, (flat, shape) in enumerate(results):
        output = context.allocate(index, numbers[index], shape, flat.dtype)
        if output.size:
            output[:] = flat
    context.allocate(len(results), numbers[-1], received.shape, received.dtype)[:] = received.reshape(-1)


# Registering ----------------------------------------------------------------------------------------------------------


class Registration:
    """The operations, as registered with TensorFlow; what TensorFlow calls must live as long as the process."""

    def __init__(self, api: Library) -> None:
        self._api = api
        self._kernels: dict[int, Kernel] = {}
        self._numbers = count(1)
        self._create = CREATE(self._create_kernel)
        self._delete = DELETE(self._delete_kernel)
        self._kept: list[Any] = []
        self._register(
            _REDUCE,
            ["xs: T"],
            ["ys: T"],
            self._infer_like_inputs,
            _run_reduce,
        )
        self._register(
            _MOVE_ROWS,
            ["xs: T", "splits: int32"],
            ["ys: T", "received: int32"],
            self._infer_nothing,
            _run_move_rows,
        )

    def _register(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        infer: Callable[[int, int], None],
        run: Callable[[Library, Context, Kernel, int], None],
    ) -> None:
        if op_def_registry.get(name) is not None:
            raise RuntimeError(f"an operation {name} is registered already")
        api = self._api
        compute = COMPUTE(self._compute(run))
        infer_shapes = INFER_SHAPES(infer)
        self._kept += [compute, infer_shapes]
        status = api.NewStatus()
        try:
            builder = api.NewOpDefinitionBuilder(name.encode())
            for each in inputs:
                api.OpDefinitionBuilderAddInput(builder, each.encode())
            for each in outputs:
                api.OpDefinitionBuilderAddOutput(builder, each.encode())
            api.OpDefinitionBuilderAddAttr(builder, b"T: list(type) >= 1")
            api.OpDefinitionBuilderAddAttr(builder, _ATTRIBUTE + b": string")
            api.OpDefinitionBuilderSetIsStateful(builder, True)
            api.OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_shapes)
            api.RegisterOpDefinition(builder, status)
            api.check(status)
            kernel = api.NewKernelBuilder(name.encode(), b"CPU", self._create, compute, self._delete)
            api.RegisterKernelBuilder(f"{name}Kernel".encode(), kernel, status)
            api.check(status)
        finally:
            api.DeleteStatus(status)

    def _create_kernel(self, construction: int) -> int:
        """Returns a number, or 0 if it failed."""
        api = self._api
        status = api.NewStatus()
        try:
            entries, size = c_int32(), c_int32()
            api.OpKernelConstruction_GetAttrSize(construction, _ATTRIBUTE, byref(entries), byref(size), status)
            api.check(status)
            text = create_string_buffer(size.value + 1)
            api.OpKernelConstruction_GetAttrString(construction, _ATTRIBUTE, text, size.value, status)
            api.check(status)
            number = next(self._numbers)
            self._kernels[number] = Kernel(Call.decode(text.raw[: size.value].decode()))
            return number
        except BaseException as error:
            api.SetStatus(status, INTERNAL, f"{type(error).__name__}: {error}".encode())
            api.OpKernelConstruction_Failure(construction, status)
            return 0
        finally:
            api.DeleteStatus(status)

    def _delete_kernel(self, number: int | None) -> None:
        self._kernels.pop(number or 0, None)

    def _compute(self, run: Callable[[Library, Context, Kernel, int], None]) -> Callable[[int, int], None]:
        def compute(number: int, raw: int) -> None:
            context = Context(self._api, raw)
            try:
                run(self._api, context, self._kernels[number], self._api.NumInputs(raw))
            except BaseException as error:
                context.fail(error)
            finally:
                context.close()

        return compute

    def _infer_like_inputs(self, context: int, status: int) -> None:
        api = self._api
        shape = api.NewShapeHandle()
        for index in range(api.ShapeInferenceContextNumInputs(context)):
            api.ShapeInferenceContextGetInput(context, index, shape, status)
            api.ShapeInferenceContextSetOutput(context, index, shape, status)
        api.DeleteShapeHandle(shape)

    def _infer_nothing(self, context: int, status: int) -> None:
        self._api.ShapeInferenceContextSetUnknownShape(context, status)


_registration: Registration | None = None


def register() -> None:
    """Make the operations known to TensorFlow; once in a process.

    Raises:
        Exception: this TensorFlow is not as we know it.
    """
    global _registration
    if _registration is None:
        _registration = Registration(Library(tf.sysconfig.get_lib()))


# Nodes ----------------------------------------------------------------------------------------------------------------


def reduce(tensors: Sequence[tf.Tensor], collective: Call) -> list[tf.Tensor]:
    """A node for an allreduce or a broadcast."""
    with tf.device("CPU:0"):
        return list(
            op_def_library.apply_op(_REDUCE, xs=list(tensors), collective=collective.encode(), name=collective.kind)
        )


def move_rows(tensors: Sequence[tf.Tensor], splits: tf.Tensor, collective: Call) -> tuple[list[tf.Tensor], tf.Tensor]:
    """A node for an allgather, an alltoall or a reducescatter."""
    with tf.device("CPU:0"):
        results, received = op_def_library.apply_op(
            _MOVE_ROWS, xs=list(tensors), splits=splits, collective=collective.encode(), name=collective.kind
        )
    received.set_shape([len(tensors), None])
    return list(results), received
