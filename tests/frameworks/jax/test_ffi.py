"""Frames of XLA's foreign function interface, as XLA makes them for programs on a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from distrun.graphs.jax import ffi, handler

pytestmark = pytest.mark.gate

BUFFER, TOKEN, FLOAT32, STRING, EXECUTE = 1, 17, 11, 4, 3


class Xla:
    """XLA's side of a call: its table of functions, and frames, which it keeps alive."""

    def __init__(self, stream: int = 0xBEEF, failure: bytes = b"") -> None:
        self.stream, self.failure = stream, failure
        self.errors: list[tuple[bytes, int]] = []
        self.destroyed: list[int] = []
        self._alive: list[object] = []
        known = {"Error_Create": self._create, "Error_GetMessage": self._get_message}
        known |= {"Error_Destroy": self._destroy, "Stream_Get": self._get_stream}
        names = [name.removeprefix("XLA_FFI_") for name in ffi._functions()]
        head = ctypes.sizeof(ffi._Api)
        self.api = (ctypes.c_char * (head + 8 * len(names)))()
        table = (ctypes.c_void_p * len(names)).from_buffer(self.api, head)
        for place, name in enumerate(names):
            if name in known:
                function = self._kept(ffi._FUNCTION(known[name]))
                table[place] = ctypes.cast(function, ctypes.c_void_p)
        ffi._Api.from_buffer(self.api).struct_size = len(self.api)

    def _kept(self, thing):
        self._alive.append(thing)
        return thing

    def _create(self, address):
        given = ffi._ErrorArguments.from_address(address)
        self.errors.append((given.message, given.code))
        return len(self.errors)

    def _get_message(self, address):
        ffi._MessageArguments.from_address(address).message = self.failure

    def _destroy(self, address):
        self.destroyed.append(ffi._DestroyArguments.from_address(address).error)

    def _get_stream(self, address):
        given = ffi._StreamArguments.from_address(address)
        assert (given.struct_size, given.context) == (32, 0xC0)
        given.stream = self.stream
        return 0xE if self.failure else None

    def frame(self, arguments=(), results=(), text=b"", stage=EXECUTE, extension=None) -> int:
        frame = self._kept(ffi._Frame(ctypes.sizeof(ffi._Frame), context=0xC0, stage=stage))
        frame.api = ctypes.cast(self.api, ctypes.POINTER(ffi._Api))
        if extension is not None:
            frame.extension = ctypes.cast(ctypes.pointer(extension), ctypes.POINTER(ffi._Extension))
        for buffers, given in ((frame.arguments, arguments), (frame.results, results)):
            made = [ffi._Buffer(ctypes.sizeof(ffi._Buffer), None, *each, 0, None) for each in given]
            pointers = (ctypes.c_void_p * len(made))(*[ctypes.addressof(self._kept(buffer)) for buffer in made])
            types = (ctypes.c_int * len(made))(*[BUFFER] * len(made))
            buffers.size, buffers.types, buffers.buffers = len(made), types, pointers
            self._kept((pointers, types))
        span = ffi._ByteSpan(ctypes.cast(ctypes.c_char_p(self._kept(text)), ctypes.c_void_p), len(text))
        values = (ctypes.POINTER(ffi._ByteSpan) * 1)(ctypes.pointer(span))
        types = (ctypes.c_int * 1)(STRING)
        frame.attributes.size, frame.attributes.types, frame.attributes.values = 1, types, values
        self._kept((span, values, types))
        return ctypes.addressof(frame)


def test_a_call_is_read_without_its_token():
    arrays = [(FLOAT32, 0x1000), (FLOAT32, 0x2000)]
    frame = ffi.Frame(Xla().frame([(TOKEN, None), *arrays], arrays[::-1], b"what to do"))
    assert frame.is_execution()
    assert frame.text() == b"what to do"
    assert frame.arguments(2) == [0x1000, 0x2000]
    assert frame.results(2) == [0x2000, 0x1000]
    for count in (0, 4):
        with pytest.raises(TypeError, match=f"a handler of {count} arrays was called with 3"):
            frame.arguments(count)


def test_the_stream_is_asked_for():
    assert ffi.Frame(Xla().frame()).stream() == 0xBEEF
    assert ffi.Frame(Xla(stream=0).frame()).stream() == 0
    xla = Xla(failure=b"XLA FFI GPU stream is not available")
    with pytest.raises(RuntimeError, match="XLA gives no stream: XLA FFI GPU stream is not available"):
        ffi.Frame(xla.frame()).stream()
    assert xla.destroyed == [0xE]


def test_a_table_without_a_function_is_an_error():
    xla = Xla()
    ffi._Api.from_buffer(xla.api).struct_size = ctypes.sizeof(ffi._Api) + 8
    with pytest.raises(RuntimeError, match="this XLA has no XLA_FFI_Stream_Get"):
        ffi.Frame(xla.frame()).stream()


def test_the_metadata_are_answered_and_nothing_runs():
    metadata = ffi._Metadata(traits=0xFFFF)
    extension = ffi._MetadataExtension(ffi._Extension(type=1), ctypes.pointer(metadata))
    assert handler.handle(Xla().frame(extension=extension), pytest.fail) is None
    assert (metadata.version.major, metadata.version.minor) == ffi.api_version()
    assert metadata.traits == 0, "XLA must not record the calls into CUDA graphs"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_other_stages_than_execution_do_nothing(stage):
    assert handler.handle(Xla().frame(stage=stage), pytest.fail) is None


def test_an_error_is_xlas_with_its_name_and_text():
    xla, ran = Xla(), SimpleNamespace(count=0)

    def run(frame):
        ran.count += 1
        raise ValueError("what was wrong")

    assert handler.handle(xla.frame(), run) == 1
    assert xla.errors == [(b"ValueError: what was wrong", 10)]
    assert ran.count == 1
    assert handler.handle(xla.frame(), lambda frame: None) is None
