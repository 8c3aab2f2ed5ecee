"""An asynchronous kernel's done callback, made to outlive the call of the kernel.

TensorFlow's C interface (`CAsyncOpKernel::ComputeAsync` in tensorflow/c/kernels.cc) gives the kernel the address of a
`std::function<void()>` that lies on the caller's stack, and is gone when the kernel returns. So it is moved from there,
as C++ would move it: its bytes are copied, and the original is left empty. That relies on the layout that libstdc++ has
had since GCC 5: sixteen bytes of what is called, the function that destroys it, and the function that calls it.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_void_p, sizeof

_CALL = CFUNCTYPE(None, c_void_p)
_MANAGE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_DESTROY = 3


class _Function(ctypes.Structure):
    _fields_ = (("callee", c_void_p * 2), ("manager", c_void_p), ("invoker", c_void_p))


class _Symbol(ctypes.Structure):
    _fields_ = (("library", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p))


_dladdr = ctypes.PyDLL(None).dladdr
_dladdr.restype, _dladdr.argtypes = c_int, (c_void_p, POINTER(_Symbol))


class DoneCallback:
    """A callback that has been moved to memory of ours. Call it once, from any thread."""

    def __init__(self, address: int) -> None:
        """Move the callback from where TensorFlow has it.

        Raises:
            RuntimeError: what lies there is no such function; nothing has been changed.
        """
        given = _Function.from_address(address)
        if not (_is_code(given.manager) and _is_code(given.invoker)):
            raise RuntimeError("TensorFlow's done callback is not a std::function of libstdc++")
        self._own = _Function()
        ctypes.memmove(byref(self._own), address, sizeof(_Function))
        given.manager = given.invoker = None

    def __call__(self) -> None:
        """Tell TensorFlow that the kernel is done. It may execute what comes next here, without Python's lock."""
        own = self._own
        _CALL(own.invoker)(byref(own))
        _MANAGE(own.manager)(byref(own), byref(own), _DESTROY)


def _is_code(address: int | None) -> bool:
    """Whether an address lies in a library that is loaded."""
    return bool(address and _dladdr(address, byref(_Symbol())))
