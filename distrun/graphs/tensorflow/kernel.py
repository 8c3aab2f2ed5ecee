"""Collectives as operations of TensorFlow, registered at run time. Inputs and outputs are TensorFlow's memory.

There are two operations. `DistrunReduce` (allreduce, broadcast) has outputs like its inputs, and works in place if no
other node needs an input. `DistrunMoveRows` (allgather, alltoall, reducescatter) determines the first dimension of its
outputs when it runs. Both have the collective as a text attribute, so a graph with them can be saved. Both are
stateful: in a tf.function, they run in the order they were traced.

TensorFlow runs kernels on its own threads. A kernel belongs to a node and may run on several threads at once. In a
tf.function, it blocks its thread while it waits, which costs the least. In a TensorFlow 1 graph, where collectives are
not ordered, the nodes have kernels that do not block (`...Async`, see `completion`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import byref, c_int32, create_string_buffer
from itertools import count
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from distrun.graphs import arrays
from distrun.graphs.completion import CompletionThread
from distrun.graphs.prepared import Operations, Prepared, complete, prepare
from distrun.graphs.tensorflow.c_api import COMPUTE, COMPUTE_ASYNC, CREATE, DELETE, INFER_SHAPES, Library
from distrun.graphs.tensorflow.context import Context
from distrun.graphs.tensorflow.done_callback import DoneCallback
from distrun.graphs.tensorflow.errors import status_code
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.request import Shape
from distrun.runtime.world import world

PROBE = "probe"
"""A kind that is not a collective: it only copies, to test whether the kernel works."""

_ATTRIBUTE = b"collective"
_REDUCE = "DistrunReduce"
_MOVE_ROWS = "DistrunMoveRows"
_ASYNC = "Async"
"""The suffix of operations whose kernel does not block its thread."""


class Kernel:
    """The kernel of one node. It caches the last prepared call, since types and shapes rarely change."""

    def __init__(self, collective: Call) -> None:
        self.collective = collective
        self._last: tuple[tuple[str, ...], tuple[Shape, ...], Prepared | None] = (), (), None

    def forget(self) -> None:
        """Clear the cached call."""
        self._last = (), (), None

    def prepare(self, dtypes: Sequence[str], shapes: Sequence[Shape]) -> Prepared:
        """Return the prepared call for tensors of these dtypes and shapes."""
        known, known_shapes, prepared = self._last
        names, extents = tuple(dtypes), tuple(shapes)
        if prepared is None or known != names or known_shapes != extents:
            prepared = prepare(self.collective, names, extents)
            self._last = names, extents, prepared
        return prepared


# Running --------------------------------------------------------------------------------------------------------------


Run = Callable[[Context, Kernel, int], Operations[None]]
"""Runs a kernel with the given number of inputs, yielding its operations. The last step writes the outputs."""


def _reduce(context: Context, kernel: Kernel, tensors: int) -> Operations[None]:
    outputs = []
    for index in range(tensors):
        context.read(index)
        outputs.append(context.output_like(index))
    if kernel.collective.kind == PROBE:
        for source, target in zip(context.inputs, outputs, strict=True):
            target[:] = source
        return
    yield from kernel.prepare(context.dtypes, context.shapes).reduction(context.inputs, outputs)


def _move_rows(context: Context, kernel: Kernel, tensors: int) -> Operations[None]:
    """Move rows. The last input has the number of rows to send to each rank, the last output the number from each."""
    numbers = [context.read(index) for index in range(tensors)]
    splits = context.inputs.pop()
    dtypes, shapes = context.dtypes[:-1], context.shapes[:-1]
    results, received = yield from arrays.row_exchange(
        kernel.prepare(dtypes, shapes), shapes, context.inputs, splits if splits.size else None, kernel.collective
    )
    for index, (flat, shape) in enumerate(results):
        output = context.allocate(index, numbers[index], shape, flat.dtype)
        if output.size:
            output[:] = flat
    context.allocate(len(results), numbers[-1], received.shape, received.dtype)[:] = received.reshape(-1)


# Registering ----------------------------------------------------------------------------------------------------------


class Registration:
    """Registers the operations with TensorFlow. It must never be freed, since TensorFlow calls its functions."""

    def __init__(self, api: Library) -> None:
        self._api = api
        self._kernels: dict[int, Kernel] = {}
        self._numbers = count(1)
        self._create = CREATE(self._create_kernel)
        self._delete = DELETE(self._delete_kernel)
        self._kept: list[Any] = []
        self._completion = CompletionThread()
        for suffix in ("", _ASYNC):
            self._register(_REDUCE + suffix, ["xs: T"], ["ys: T"], self._infer_like_inputs, _reduce)
            inputs, outputs = ["xs: T", "splits: int32"], ["ys: T", "received: int32"]
            self._register(_MOVE_ROWS + suffix, inputs, outputs, self._infer_nothing, _move_rows)

    def forget(self) -> None:
        """Clear all cached calls, since the numbers of process sets have another meaning in the next world."""
        for kernel in list(self._kernels.values()):
            kernel.forget()

    def _register(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], infer: Callable[[int, int], None], run: Run
    ) -> None:
        if op_def_registry.get(name) is not None:
            raise RuntimeError(f"an operation {name} is registered already")
        api = self._api
        if name.endswith(_ASYNC):
            new_builder, compute = api.NewAsyncKernelBuilder, COMPUTE_ASYNC(self._compute_async(run))
        else:
            new_builder, compute = api.NewKernelBuilder, COMPUTE(self._compute(run))
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
            kernel = new_builder(name.encode(), b"CPU", self._create, compute, self._delete)
            api.RegisterKernelBuilder(f"{name}Kernel".encode(), kernel, status)
            api.check(status)
        finally:
            api.DeleteStatus(status)

    def _create_kernel(self, construction: int) -> int:
        """Return the number of a new kernel, or 0 if it failed."""
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
            api.SetStatus(status, status_code(error), f"{type(error).__name__}: {error}".encode())
            api.OpKernelConstruction_Failure(construction, status)
            return 0
        finally:
            api.DeleteStatus(status)

    def _delete_kernel(self, number: int | None) -> None:
        self._kernels.pop(number or 0, None)

    def _compute(self, run: Run) -> Callable[[int, int], None]:
        def compute(number: int, raw: int) -> None:
            context = Context(self._api, raw)
            try:
                complete(run(context, self._kernels[number], self._api.NumInputs(raw)))
            except BaseException as error:
                context.fail(error)
            finally:
                context.close()

        return compute

    def _compute_async(self, run: Run) -> Callable[[int, int, int], None]:
        compute_here = self._compute(run)

        def compute(number: int, raw: int, done: int) -> None:
            try:
                callback = DoneCallback(done)
            except RuntimeError:  # unknown layout: the callback is only valid during this call, so block
                compute_here(number, raw)
                self._api.RunAsyncOpKernelDoneCallback(done)
                return
            context = Context(self._api, raw)

            def finish(error: BaseException | None) -> None:
                if error is not None:
                    context.fail(error)
                context.close()
                callback()

            self._completion.start(run(context, self._kernels[number], self._api.NumInputs(raw)), finish)

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
    """Register the operations with TensorFlow, once in a process. This fails where its C interface is unknown."""
    global _registration
    if _registration is None:
        _registration = Registration(Library(tf.sysconfig.get_lib()))
        world.on_leaving(_registration.forget)


# Nodes ----------------------------------------------------------------------------------------------------------------


def reduce(tensors: Sequence[tf.Tensor], collective: Call) -> list[tf.Tensor]:
    """Return the results of a new node for an allreduce or a broadcast."""
    return list(_node(_REDUCE, collective, xs=list(tensors)))


def move_rows(tensors: Sequence[tf.Tensor], splits: tf.Tensor, collective: Call) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Return the results of a new node for an allgather, an alltoall or a reducescatter."""
    results, received = _node(_MOVE_ROWS, collective, xs=list(tensors), splits=splits)
    received.set_shape([len(tensors), None])
    return list(results), received


def _node(name: str, collective: Call, **inputs: Any) -> Any:
    with tf.device("CPU:0"):
        return op_def_library.apply_op(
            name if is_ordered() else name + _ASYNC, **inputs, collective=collective.encode(), name=collective.kind
        )


def is_ordered() -> bool:
    """Return whether the graph that is being built will run its collectives in order, as a tf.function does."""
    return bool(tf.compat.v1.executing_eagerly_outside_functions())
