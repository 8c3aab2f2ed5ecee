"""TensorFlow's C interface for operations and kernels, declared for ctypes.

These are the needed declarations of its headers `tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h`, as in TensorFlow
2.16 and 2.21. The functions return quickly, so they keep the interpreter's lock (GIL): releasing it around each of them
could cost a switch to another thread every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

CREATE = CFUNCTYPE(c_void_p, c_void_p)
"""Makes a kernel from its construction context, and returns its identifier."""
COMPUTE = CFUNCTYPE(None, c_void_p, c_void_p)
"""Runs a kernel, given its identifier and the context with inputs and outputs."""
COMPUTE_ASYNC = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
"""Starts a kernel, given the same and the callback for its end. See `done_callback`."""
DELETE = CFUNCTYPE(None, c_void_p)
INFER_SHAPES = CFUNCTYPE(None, c_void_p, c_void_p)
"""Infers output shapes, given a shape inference context and a status."""

_INTS = POINTER(c_int)
_POINTERS = POINTER(c_void_p)
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "TF_NewStatus": (c_void_p, ()),
    "TF_DeleteStatus": (None, (c_void_p,)),
    "TF_SetStatus": (None, (c_void_p, c_int, c_char_p)),
    "TF_GetCode": (c_int, (c_void_p,)),
    "TF_Message": (c_char_p, (c_void_p,)),
    # Operations
    "TF_NewOpDefinitionBuilder": (c_void_p, (c_char_p,)),
    "TF_OpDefinitionBuilderAddAttr": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderAddInput": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderAddOutput": (None, (c_void_p, c_char_p)),
    "TF_OpDefinitionBuilderSetIsStateful": (None, (c_void_p, c_bool)),
    "TF_OpDefinitionBuilderSetShapeInferenceFunction": (None, (c_void_p, INFER_SHAPES)),
    "TF_RegisterOpDefinition": (None, (c_void_p, c_void_p)),
    "TF_ShapeInferenceContextNumInputs": (c_int64, (c_void_p,)),
    "TF_ShapeInferenceContextGetInput": (None, (c_void_p, c_int, c_void_p, c_void_p)),
    "TF_ShapeInferenceContextSetOutput": (None, (c_void_p, c_int, c_void_p, c_void_p)),
    "TF_ShapeInferenceContextSetUnknownShape": (None, (c_void_p, c_void_p)),
    "TF_NewShapeHandle": (c_void_p, ()),
    "TF_DeleteShapeHandle": (None, (c_void_p,)),
    # Kernels
    "TF_NewKernelBuilder": (c_void_p, (c_char_p, c_char_p, CREATE, COMPUTE, DELETE)),
    "TF_NewAsyncKernelBuilder": (c_void_p, (c_char_p, c_char_p, CREATE, COMPUTE_ASYNC, DELETE)),
    "TF_RunAsyncOpKernelDoneCallback": (None, (c_void_p,)),
    "TF_RegisterKernelBuilder": (None, (c_char_p, c_void_p, c_void_p)),
    "TF_OpKernelConstruction_GetAttrSize": (None, (c_void_p, c_char_p, POINTER(c_int32), POINTER(c_int32), c_void_p)),
    "TF_OpKernelConstruction_GetAttrString": (None, (c_void_p, c_char_p, c_char_p, c_size_t, c_void_p)),
    "TF_OpKernelConstruction_Failure": (None, (c_void_p, c_void_p)),
    "TF_OpKernelContext_Failure": (None, (c_void_p, c_void_p)),
    "TF_NumInputs": (c_int, (c_void_p,)),
    "TF_GetInput": (None, (c_void_p, c_int, _POINTERS, c_void_p)),
    "TF_AllocateOutput": (c_void_p, (c_void_p, c_int, c_int, POINTER(c_int64), c_int, c_size_t, c_void_p)),
    "TF_ForwardInputOrAllocateOutput": (
        c_void_p,
        (c_void_p, _INTS, c_int, c_int, POINTER(c_int64), c_int, _INTS, c_void_p),
    ),
    # Tensors
    "TF_DeleteTensor": (None, (c_void_p,)),
    "TF_TensorType": (c_int, (c_void_p,)),
    "TF_NumDims": (c_int, (c_void_p,)),
    "TF_Dim": (c_int64, (c_void_p, c_int)),
    "TF_TensorData": (c_void_p, (c_void_p,)),
    "TF_TensorByteSize": (c_size_t, (c_void_p,)),
}


class Library:
    """The C interface of the TensorFlow in `folder`. Its functions are attributes, without the prefix `TF_`."""

    def __init__(self, folder: str) -> None:
        paths = sorted(Path(folder).glob("libtensorflow_framework.so*"))
        if not paths:
            raise OSError(f"there is no libtensorflow_framework.so in {folder}")
        library = ctypes.PyDLL(str(paths[0]))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("TF_"), function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"the C interface has no {name}")

    def check(self, status: int) -> None:
        """
        Raises:
            RuntimeError: the status is not OK.
        """
        if self.GetCode(status):
            raise RuntimeError(self.Message(status).decode(errors="replace"))
