"""Kernels compiled from C have numpy's results, bit for bit, with each set of instructions; all works without them."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from hypothesis import given, strategies as st
from session.hypothesis_profiles import examples

from distrun import native
from distrun.runtime.backends.quantisation import AT_ONCE, BLOCK, QUANTISERS, Quantiser
from distrun.runtime.operations.dtypes import _DECODE, _ENCODE, ELEMENT_TYPES
from distrun.tensor_fusion.packing import _PACK, _UNPACK, FEW, pack, unpack

KERNELS = {
    **{name: (kind._quantise_kernel, kind._restore_kernel) for name, kind in QUANTISERS.items()},
    **{name: (_ENCODE[name], _DECODE[name]) for name in _ENCODE},
    "packing": (_PACK, _UNPACK),
}
counts = st.one_of(st.integers(0, 3 * BLOCK), st.sampled_from([AT_ONCE - 1, AT_ONCE, AT_ONCE + BLOCK + 3]))
seeds = st.integers(0, 1 << 32)
kinds = st.sampled_from(["normal", "spread", "infinities", "NaNs", "any bits"])


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch):
    """Kernels are used here, even where the whole suite runs without them."""
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.library.cache_clear()
    for kernel in (kernel for pair in KERNELS.values() for kernel in pair):
        monkeypatch.delitem(kernel.__dict__, "best", raising=False)
    yield
    native.library.cache_clear()


@pytest.fixture(params=["avx512", "avx2", "base"])
def compiled(request, monkeypatch):
    """Return a function that makes all kernels use one set of instructions, or none at all."""
    variant = request.param
    if variant not in native.variants():
        pytest.skip(f"this machine's processor ({platform.machine()}) has no {variant}")

    def use(is_on: bool) -> None:
        for kernel in (kernel for pair in KERNELS.values() for kernel in pair):
            monkeypatch.setitem(kernel.__dict__, "best", kernel.function(variant) if is_on else None)

    return use


def floats(count: int, kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=count).astype(np.float32)
    if kind == "spread":
        values *= np.float32(10.0) ** rng.integers(-40, 38, count).astype(np.float32)
    elif kind == "infinities":
        values[rng.random(count) < 0.01] = -np.inf
    elif kind == "NaNs":
        values[rng.random(count) < 0.01] = np.nan
        values[rng.random(count) < 0.3] = -0.0
    elif kind == "any bits":
        values = np.frombuffer(rng.bytes(4 * count), np.float32).copy()
    return values


def assert_same(some: np.ndarray, other: np.ndarray) -> None:
    """Compare bits, but a NaN may be another NaN."""
    whole = np.dtype(f"u{some.itemsize}")
    different = some.view(whole) != other.view(whole)
    if some.dtype.kind == "f":
        different &= ~(np.isnan(some) & np.isnan(other))
    assert not different.any()


def quantised(quantiser: Quantiser, values: np.ndarray, old: np.ndarray | None, restored: str) -> list[np.ndarray]:
    """Return the scales, the codes, what is written beside them, and the values that are made of them."""
    values = values.copy()
    out = np.zeros(quantiser.nbytes(values.size), np.uint8)
    back = {"none": None, "apart": np.empty_like(values), "in place": values}[restored]
    lost = None if old is None else np.empty_like(old)
    quantiser.quantise(values, out, None if old is None else (old, lost), back)
    result = np.empty_like(values)
    quantiser.restore(out, result)
    stop = 4 * -(-values.size // BLOCK)
    return [out[:stop].view(np.float32), out[stop:], result, *(each for each in (lost, back) if each is not None)]


@pytest.mark.parametrize("wire", QUANTISERS)
@examples(gate=10, full=300)
@given(
    count=counts,
    kind=kinds,
    seed=seeds,
    feedback=st.booleans(),
    restored=st.sampled_from(["none", "apart", "in place"]),
)
def test_quantised_values_are_numpys(compiled, wire, count, kind, seed, feedback, restored):
    values, old = floats(count, kind, seed), floats(count, "normal", seed + 1) if feedback else None
    results = []
    for is_on in (True, False):
        compiled(is_on)
        results.append(quantised(QUANTISERS[wire](), values, old, restored))
    for some, other in zip(*results, strict=True):
        assert_same(some, other)


@pytest.mark.parametrize("name", _ENCODE)
@examples(gate=10, full=300)
@given(count=counts, kind=kinds, seed=seeds)
def test_encoded_halves_are_numpys(compiled, name, count, kind, seed):
    element, values = ELEMENT_TYPES[name], floats(count, kind, seed)
    results = []
    for is_on in (True, False):
        compiled(is_on)
        results.append(np.empty(count, element.storage))
        with np.errstate(all="ignore"):
            element.encode(values, results[-1])
    if name == "float16":
        assert_same(*results)
    else:
        assert (results[0] == results[1]).all()


@pytest.mark.parametrize("name", _DECODE)
def test_all_patterns_of_16_bits_are_decoded_as_by_numpy(compiled, name):
    element = ELEMENT_TYPES[name]
    results = []
    for is_on in (True, False):
        compiled(is_on)
        results.append(np.empty(1 << 16, np.float32))
        element.decode(np.arange(1 << 16, dtype=np.uint16).view(element.storage), results[-1])
    assert_same(*results)


def parts_of(whole: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Return copies of consecutive parts, at addresses of all kinds."""
    copies = []
    for index, part in enumerate(np.split(whole, np.cumsum(sizes)[:-1])):
        room = np.empty(index % 64 + part.nbytes, np.uint8)[index % 64 :].view(whole.dtype)
        room[:] = part
        copies.append(room)
    return copies


lengths = st.lists(st.one_of(st.integers(0, 80), st.just(1024)), min_size=FEW + 1, max_size=30)
dtypes = st.sampled_from(["bool", "float16", "float32", "float64", "complex128", "longdouble"])


@examples(gate=20, full=500)
@given(sizes=lengths, dtype=dtypes, seed=seeds)
def test_arrays_are_packed_and_unpacked_as_by_numpy(compiled, sizes, dtype, seed):
    values = np.random.default_rng(seed).integers(0, 100, sum(sizes)).astype(dtype)
    for is_on in (True, False):
        compiled(is_on)
        parts, packed = parts_of(values, sizes), np.zeros_like(values)
        assert _PACK.moves(parts, packed) is is_on
        pack(parts, packed)
        assert packed.tobytes() == values.tobytes()
        rooms = parts_of(np.zeros_like(values), sizes)
        packed.flags.writeable = False
        assert _UNPACK.moves(rooms, packed) is is_on
        unpack(packed, rooms)
        assert [room.tobytes() for room in rooms] == [part.tobytes() for part in parts]


class Subclass(np.ndarray):
    """An array that may be more than its elements."""


@pytest.mark.parametrize(
    "odd",
    [
        np.ones((2, 2), np.float32),
        np.ones(8, np.float32)[::2],
        np.ones(5, np.float32),
        np.ones(4, np.float64),
        np.ones(4, np.float32).view(Subclass),
        "not an array",
    ],
    ids=["two-dimensional", "strided", "longer", "another dtype", "a subclass", "no array"],
)
def test_what_are_not_the_parts_of_a_buffer_is_left_to_numpy(compiled, odd):
    compiled(True)
    parts, whole = [np.zeros(4, np.float32) for _ in range(6)], np.full(24, 7, np.float32)
    assert not _PACK.moves([*parts[1:], odd], whole)
    assert not _UNPACK.moves([*parts[1:], odd], whole)
    assert (whole == 7).all()
    assert not np.any(parts)
    parts[3].flags.writeable = False
    assert not _UNPACK.moves(parts, whole)
    assert not _PACK.moves(parts, whole[::-1])
    assert not _PACK.moves(parts, whole.view(Subclass))
    assert _PACK.moves(parts, whole)
    whole.flags.writeable = False
    assert not _PACK.moves(parts, whole)


def test_the_library_is_there_and_was_compiled_from_these_sources():
    native.load()  # scripts/install compiles it
    for pair in (*(KERNELS[name] for name in QUANTISERS), KERNELS["packing"]):
        assert None not in [kernel.best for kernel in pair]


def test_arrays_that_a_kernel_cannot_take_are_left_to_numpy():
    restore = KERNELS["bfloat16"][1]
    halves = np.zeros(8, np.uint16)
    assert restore(8, halves, np.empty(8, np.float32))
    assert not restore(8, halves, np.empty(8, np.float64))
    assert not restore(4, halves[::2], np.empty(4, np.float32))


def test_without_a_library_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("DISTRUN_NATIVE", "0")
    with pytest.raises(native.NoLibraryError, match=r"^DISTRUN_NATIVE=0$"):
        native.load()
    assert native.state() == "no kernels in C (DISTRUN_NATIVE=0)"
    monkeypatch.delenv("DISTRUN_NATIVE")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.raises(native.NoLibraryError, match=f"^there is none for {platform.machine()} in this installation$"):
        native.load()
    native.path(platform.machine()).write_text("not a library")
    with pytest.raises(native.NoLibraryError, match=r"^the library cannot be loaded: .*too short$"):
        native.load()


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "sources_digest", lambda: "0" * 64)
    with pytest.raises(native.NoLibraryError, match=r"was compiled from other sources: run scripts/packaging/native$"):
        native.load()
