"""An asynchronous kernel's done callback, made to outlive the call of the kernel.

TensorFlow's C interface (`CAsyncOpKernel::ComputeAsync` in tensorflow/c/kernels.cc) passes the kernel the address of a
`std::function<void()>` on the caller's stack, which is gone when the kernel returns. So it is moved from there, as C++
would do: its bytes are copied, and the original is left empty. This relies on the layout of libstdc++ since GCC 5:
sixteen bytes of the callee, the function that manages (destroys) it, and the function that calls it.
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
    """A callback that was moved to memory of this object. Call it once, in any thread."""

    def __init__(self, address: int) -> None:
        """Move the callback from `address`, or raise a RuntimeError if there is no such function."""
        given = _Function.from_address(address)
        if not (_is_code(given.manager) and _is_code(given.invoker)):
            raise RuntimeError("TensorFlow's done callback is not a std::function of libstdc++")
        self._own = _Function()
        ctypes.memmove(byref(self._own), address, sizeof(_Function))
        given.manager = given.invoker = None

    def __call__(self) -> None:
        """Notify TensorFlow that the kernel is done. It may run the next kernels in this call, without the GIL."""
        own = self._own
        _CALL(own.invoker)(byref(own))
        _MANAGE(own.manager)(byref(own), byref(own), _DESTROY)


def _is_code(address: int | None) -> bool:
    """Return whether `address` is in a loaded library."""
    return bool(address and _dladdr(address, byref(_Symbol())))
