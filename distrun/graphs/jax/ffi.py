"""XLA's foreign function interface in ctypes: the needed declarations of its C header (xla/ffi/api/c_api.h).

Every structure begins with its size and a list of extensions, and grows only at its end.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import jax

HANDLER = ctypes.CFUNCTYPE(c_void_p, c_void_p)
"""The function that XLA calls with the address of a call frame. Returns None, or an error made by `Frame.error`."""

_EXECUTE = 3  # the stage of a call frame for execution. Other stages prepare for it
_METADATA = 1  # the type of the extension that asks for the handler's version
_NO_TRAITS = 0  # above all not COMMAND_BUFFER_COMPATIBLE: XLA must call the handler, not replay what it queued
_STRING = 4  # the type of an attribute
_ABORTED = 10  # an error code


class _Extension(Structure):
    pass


_Extension._fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", POINTER(_Extension))]


class _Version(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Api(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("version", _Version),
        ("internal", c_void_p),
    ]  # and then the functions, in the order of `_functions`


class _Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Buffers(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("buffers", POINTER(c_void_p)),
    ]


class _ByteSpan(Structure):
    _fields_ = [("start", c_void_p), ("length", c_size_t)]


class _Attributes(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extension", c_void_p),
        ("size", c_int64),
        ("types", POINTER(c_int)),
        ("names", c_void_p),
        ("values", POINTER(POINTER(_ByteSpan))),
    ]


class _Frame(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    ]


class _ErrorArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _MessageArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("error", c_void_p), ("message", c_char_p)]


class _DestroyArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("error", c_void_p)]


class _StreamArguments(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_POINTER_BYTES = ctypes.sizeof(c_void_p)
_DATA = _Buffer.data.offset


class Frame:
    """The frame of a handler's call, at the address that the handler was given. Valid until the handler returns."""

    __slots__ = ("_frame",)

    def __init__(self, address: int) -> None:
        self._frame = _Frame.from_address(address)

    def is_execution(self) -> bool:
        """Return whether the handler must execute. Otherwise XLA prepares, or asks for the version, which is
        answered."""
        frame = self._frame
        if frame.extension:
            self._answer()
            return False
        return bool(frame.stage == _EXECUTE)

    def _answer(self) -> None:
        """If XLA asks for it, set the version of the interface that the handler was made for, and its traits."""
        extension = self._frame.extension
        while extension:
            if extension.contents.type == _METADATA:
                metadata = ctypes.cast(extension, POINTER(_MetadataExtension)).contents.metadata.contents
                metadata.version.major, metadata.version.minor = api_version()
                metadata.traits = _NO_TRAITS
            extension = extension.contents.next

    def text(self) -> bytes:
        """Return the only attribute, which must be a string."""
        attributes = self._frame.attributes
        if attributes.size != 1 or attributes.types[0] != _STRING:
            raise TypeError(f"a handler with one string was called with {attributes.size} attributes")
        span = attributes.values[0].contents
        return ctypes.string_at(span.start, span.length)

    def arguments(self, count: int) -> list[int]:
        """Return the addresses of the data of the last `count` arguments. A token may precede them."""
        return _addresses(self._frame.arguments, count)

    def results(self, count: int) -> list[int]:
        """Return the addresses for the data of the last `count` results."""
        return _addresses(self._frame.results, count)

    def stream(self) -> int:
        """Return the stream of the call, on a GPU: a CUstream, which is also a cudaStream_t.

        Raises:
            RuntimeError: XLA has none for this call.
        """
        arguments = _StreamArguments(ctypes.sizeof(_StreamArguments), None, self._frame.context, None)
        error = self._function("XLA_FFI_Stream_Get")(ctypes.addressof(arguments))
        if error:
            raise RuntimeError(f"XLA gives no stream: {self._taken(error)}")
        return arguments.stream or 0

    def error(self, message: str) -> Any:
        """Return the value that the handler must return to fail with `message`."""
        size = _ErrorArguments.code.offset + ctypes.sizeof(c_int)
        arguments = _ErrorArguments(size, None, message.encode(), _ABORTED)
        return self._function("XLA_FFI_Error_Create")(ctypes.addressof(arguments))

    def _taken(self, error: int) -> str:
        """Return the message of an error of XLA, which is destroyed."""
        asked = _MessageArguments(ctypes.sizeof(_MessageArguments), None, error, None)
        self._function("XLA_FFI_Error_GetMessage")(ctypes.addressof(asked))
        message = (asked.message or b"").decode(errors="replace")
        done = _DestroyArguments(ctypes.sizeof(_DestroyArguments), None, error)
        self._function("XLA_FFI_Error_Destroy")(ctypes.addressof(done))
        return message

    def _function(self, name: str) -> Any:
        """Return the function `name` of XLA's table, which takes the address of its arguments."""
        api = self._frame.api
        place = ctypes.sizeof(_Api) + _functions().index(name) * _POINTER_BYTES
        if place + _POINTER_BYTES > api.contents.struct_size:
            raise RuntimeError(f"this XLA has no {name}")
        return _FUNCTION(c_uint64.from_address(ctypes.addressof(api.contents) + place).value)


def _addresses(buffers: _Buffers, count: int) -> list[int]:
    skipped = buffers.size - count
    if skipped not in (0, 1):
        raise TypeError(f"a handler of {count} arrays was called with {buffers.size}")
    pointers = buffers.buffers[skipped : buffers.size]
    return [c_uint64.from_address(pointer + _DATA).value for pointer in pointers]


@cache
def _header() -> str:
    return Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()


@cache
def api_version() -> tuple[int, int]:
    """Return the version of the interface in JAX's own header, whose major one must be what is declared here. The minor
    one increases when structures grow at the end.
    """
    versions = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", _header()))
    if versions.get("MAJOR") != "0":
        raise RuntimeError(f"XLA's foreign function interface has version {versions}, and 0 is known here")
    return 0, int(versions["MINOR"])


@cache
def _functions() -> list[str]:
    """Return the names of the functions in XLA's table, in their order in JAX's own header."""
    return re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\);", _header())


def memory(address: int, nbytes: int) -> Any:
    """Return the memory at `address` as a buffer object for numpy."""
    return (c_char * nbytes).from_address(address)
