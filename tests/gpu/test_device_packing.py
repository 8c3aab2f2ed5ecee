"""Packing on a GPU: the plan of launches; and the kernel itself, compiled for the CPU, against numpy."""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from session.tiers import one_in_gate

from distrun.errors import UsageError
from distrun.tensor_fusion import device_packing
from distrun.tensor_fusion.device_packing import (
    PIECES,
    TABLE,
    THREADS,
    Piece,
    Variant,
    choose_variant,
    launches,
    read_code,
)

pytestmark = pytest.mark.gate
FLOATS = ("float16", "bfloat16", "float32", "float64")
PAIRS = [(source, target) for source in FLOATS for target in FLOATS]
BYTES = choose_variant("uint8", "uint8", 1)
VARIANTS = [BYTES, *[choose_variant(*pair, 0.5) for pair in PAIRS]]
IN_GATE = (BYTES, *[choose_variant(*pair, 0.5) for pair in (("float32", "float32"), ("float32", "float16"))])
SOME_IN_GATE = [pytest.param(each, marks=() if each in IN_GATE else pytest.mark.full) for each in VARIANTS]
PRELUDE = Path(__file__).parents[1] / "simulator" / "kernel_prelude.h"
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE: room that takes no memory until it is written

DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in FLOATS}


def name_of(variant: Variant) -> str:
    return f"{variant.source}-{variant.target}"


# The plan -------------------------------------------------------------------------------------------------------------


def reach(variant: Variant, planned) -> list[tuple[int, int, int, int]]:
    """Piece by piece: source, target, and the first and one past the last element that its blocks reach."""
    reached = []
    for table, blocks in planned:
        row, last = table[0], 0
        for source, target, count, stop in zip(*[row[name].tolist() for name in TABLE.names[1:]], strict=True):
            if last == blocks:
                assert stop == 2**32 - 1
                continue
            skipped = target // device_packing._SIZES[variant.target] % variant.line
            assert (stop - last - 1) * variant.chunk - skipped < count <= (stop - last) * variant.chunk - skipped
            reached.append((source, target, 0, count))
            last = stop
        assert last == blocks
    return reached


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 3) | st.integers(0, 2**36)), max_size=300
    ),
    st.sampled_from(VARIANTS),
)
def test_every_element_of_every_piece_is_moved_by_one_block(drawn, variant):
    size = device_packing._SIZES[variant.target]
    pieces = [
        Piece(8 * source, (place << 50) + target * size, count) for place, (source, target, count) in enumerate(drawn)
    ]
    planned = launches(pieces, variant, 0.5)
    expected = [
        (piece.source, piece.target, 0, piece.count)
        for piece in pieces
        if piece.count and not (variant.moves_only and piece.source == piece.target)
    ]
    assert reach(variant, planned) == expected
    assert len(planned) == -(-len(expected) // PIECES)
    assert all(table.size == 1 and table["factor"] == 0.5 and blocks < 2**31 for table, blocks in planned)


def test_a_block_begins_at_a_cache_line():
    assert all(variant.chunk % variant.line == 0 for variant in VARIANTS)


def test_the_table_and_nothing_else_fits_the_parameters_of_a_launch():
    assert TABLE.itemsize <= 4096
    assert PIECES & (PIECES - 1) == 0


def test_equal_types_without_a_factor_are_copied_as_bytes():
    assert [choose_variant(name, name, 1.0).units for name in ("bool", "bfloat16", "int32", "complex128")] == [
        1,
        2,
        4,
        16,
    ]
    assert all(choose_variant(name, name, 1.0).moves_only for name in ("bool", "bfloat16", "int32", "complex128"))


def test_complex_numbers_are_scaled_as_pairs():
    assert choose_variant("complex64", "complex64", 0.5) == Variant("float32", "float32", 2)


@pytest.mark.parametrize(
    ("source", "target", "factor"), [("int32", "int32", 0.5), ("int32", "float32", 1), ("complex64", "float32", 1)]
)
def test_what_the_kernel_cannot_convert_is_refused(source, target, factor):
    with pytest.raises(
        UsageError, match=f"{source} elements cannot be made {target} ones .* factor {factor}: {source} can"
    ):
        choose_variant(source, target, factor)


def test_scaling_in_place_is_kept_and_copying_in_place_is_not():
    pieces = [Piece(64, 64, 3)]
    assert launches(pieces, BYTES) == []
    assert len(launches(pieces, choose_variant("float32", "float32", 2.0), 2.0)) == 1


# The kernel, compiled for the CPU -------------------------------------------------------------------------------------


def all_variants(prelude: str = "") -> str:
    """One source with the kernels of all variants, pack_<source>_<target>."""
    parts = [prelude]
    for variant in VARIANTS:
        defined = [option[2:].split("=") for option in variant.options if option.startswith("-D")]
        name = f"pack_{variant.source}_{variant.target}"
        parts += [f"#define {macro} {value}" for macro, value in [*defined, ("pack", name)]]
        parts += [f"namespace of_{name} {{", read_code(), *([_checked(name)] if prelude else []), "}"]
        parts += [f"#undef {macro}" for macro, _ in [*defined, ("pack", name)]]
    return "\n".join(parts)


def _checked(name: str) -> str:
    """Compile a function that runs a kernel's blocks from `first` up to `stop`, and checks the layout of the table."""
    offsets = [f"offsetof(Table, {field}) == {TABLE.fields[field][1]}" for field in TABLE.names]
    return f"""
        static_assert(sizeof(Table) == {TABLE.itemsize} && {" && ".join(offsets)});
        extern "C" void run_{name}(const Table* table, unsigned first, unsigned stop) {{
            for (blockIdx.x = first; blockIdx.x < stop; ++blockIdx.x)
                for (threadIdx.x = 0; threadIdx.x < {THREADS}; ++threadIdx.x) pack(*table);
        }}"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All variants, as functions run_pack_<source>_<target>."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    room = tmp_path_factory.mktemp("kernel")
    (room / "all.cpp").write_text(all_variants(f'#include <cstddef>\n#include "{PRELUDE}"'))
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "all.cpp", "-o", "all.so"]
    subprocess.run(command, cwd=room, check=True)
    return ctypes.CDLL(str(room / "all.so"))


Copy = Callable[..., None]


@pytest.fixture
def copy(library: ctypes.CDLL) -> Copy:
    """Do on the CPU what `Packer.copy` does. With `ends`, only the first and the last block of each launch."""

    def run(
        pieces: Sequence[Piece],
        source: str,
        target: str,
        factor: float = 1.0,
        variant: Variant | None = None,
        ends=False,
    ) -> None:
        variant = variant or choose_variant(source, target, factor)
        kernel = library[f"run_pack_{variant.source}_{variant.target}"]
        for table, blocks in launches(pieces, variant, factor):
            for first, stop in [(0, 1), (blocks - 1, blocks)] if ends else [(0, blocks)]:
                kernel(ctypes.c_void_p(table.ctypes.data), first, stop)

    return run


def aligned(nbytes: int) -> np.ndarray:
    """Zeros, whose address is a multiple of 128."""
    room = np.zeros(nbytes + 128, np.uint8)
    start = -room.ctypes.data % 128
    return room[start : start + nbytes]


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """float64 `values` rounded once, to nearest even, to numbers of type `name`; in float64."""
    if name == "float64":
        return values
    digits, least, largest = {
        "float16": (11, -14, 65504.0),
        "bfloat16": (8, -126, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
        "float32": (24, -126, float(np.finfo(np.float32).max)),
    }[name]
    exponent = np.maximum(np.frexp(values)[1] - 1, least) - (digits - 1)  # of the last digit
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent)
    return np.where(np.abs(result) > largest, np.copysign(np.inf, result), result)


def scaled(values: np.ndarray, source: str, target: str, factor: float) -> np.ndarray:
    """Return what the kernel must make of elements of `source`, as float64."""
    number = np.float64 if "float64" in (source, target) else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        product = values.astype(number) * number(factor)
    return rounded(product.astype(np.float64), target)


def interesting(name: str) -> np.ndarray:
    """Numbers of a type: every one of 16 bits; else all kinds, many of which halfway between two of 16 bits."""
    if DTYPES[name].itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(DTYPES[name])
    random = np.random.default_rng(5)
    unsigned = np.dtype(f"u{DTYPES[name].itemsize}")
    bits = random.integers(0, np.iinfo(unsigned).max, 1000, unsigned, endpoint=True).view(DTYPES[name])
    halves = [interesting(half)[: 1 << 15] for half in ("float16", "bfloat16")]
    with np.errstate(invalid="ignore"):
        ties = [np.sort(half[np.isfinite(half)].astype(np.float64)) for half in halves]
    ties = np.concatenate([(each[:-1] + each[1:]) / 2 for each in ties])[::7]
    ties = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), -ties])
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65519.99, 65520, 1e-320, 5e-324, 1e-45, 3.4028235677973366e38, 1e308]
    with np.errstate(over="ignore"):
        return np.concatenate([bits, ties.astype(DTYPES[name]), np.array(special).astype(DTYPES[name])])


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_numbers_are_scaled_and_rounded_once(copy, source, target):
    given = interesting(source)
    result = np.empty(given.size, DTYPES[target])
    piece = Piece(given.ctypes.data, result.ctypes.data, given.size)
    for factor in (1.0, 1 / 3, -1000.0):
        copy([piece], source, target, factor, variant=Variant(source, target, 1))
        with np.errstate(invalid="ignore"):
            expected = scaled(given.astype(np.float64), source, target, factor)
            found = result.astype(np.float64)
        np.testing.assert_array_equal(found, expected)
        is_number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(expected[is_number]))


@pytest.mark.parametrize("variant", SOME_IN_GATE, ids=name_of)
def test_pieces_of_all_sizes_and_places_are_moved_and_nothing_else(copy, variant):
    source, target = ("uint8", "uint8") if variant is BYTES else (variant.source, variant.target)
    given_type, made_type = DTYPES.get(source, np.dtype(source)), DTYPES.get(target, np.dtype(target))
    random = np.random.default_rng(1)
    factor = 1.0 if variant is BYTES else 0.5
    size = 3 * variant.chunk
    given, made = (aligned(size * kind.itemsize).view(kind) for kind in (given_type, made_type))
    given[:] = random.integers(1, 100, size)
    around = [chunks * variant.chunk + extra for chunks in (1, 2) for extra in (-17, -1, 0, 1, 16)]
    for count in [1, 2, 3, 15, 16, 17, 31, 33, 130, *around]:
        for _ in range(4):
            start, end = random.integers(0, 40, 2)
            made[:] = 77
            copy([Piece(given[start:].ctypes.data, made[end:].ctypes.data, count)], source, target, factor)
            expected = np.full(size, 77.0)
            expected[end : end + count] = given[start : start + count].astype(np.float64) * factor
            if variant is not BYTES:
                expected = rounded(expected, target)
            np.testing.assert_array_equal(made.astype(np.float64), expected)


@pytest.mark.parametrize("name", one_in_gate("int8", "int16", "bfloat16", "float32", "float64", chosen=2))
@pytest.mark.parametrize("padding", [1, 0])
def test_many_arrays_get_into_a_buffer_and_out_again(copy, name, padding):
    dtype = DTYPES.get(name, np.dtype(name))
    random = np.random.default_rng(3)
    sizes = [*random.integers(0, 50, 2 * PIECES).tolist(), 7 * THREADS, 20_000, 1]
    parts = [random.integers(0, 100, size + padding).astype(dtype)[padding:] for size in sizes]
    buffer = np.empty(sum(sizes), dtype)
    places = np.cumsum([0, *sizes[:-1]]) * dtype.itemsize + buffer.ctypes.data
    pieces = [Piece(part.ctypes.data, place, part.size) for part, place in zip(parts, places.tolist(), strict=True)]
    copy(pieces, name, name)
    np.testing.assert_array_equal(buffer, np.concatenate(parts))
    again = [np.empty_like(part) for part in parts]
    copy(
        [Piece(piece.target, part.ctypes.data, part.size) for piece, part in zip(pieces, again, strict=True)],
        name,
        name,
    )
    for part, expected in zip(again, parts, strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("variant", SOME_IN_GATE, ids=name_of)
def test_no_source_means_zeros(copy, variant):
    size = device_packing._SIZES[variant.target]
    made = aligned((2 * variant.chunk + 8) * size)
    count = variant.chunk + 2
    for start in (0, 3):
        made[:] = 7
        copy([Piece(0, made.ctypes.data + start * size, count)], "", "", 0.5, variant=variant)
        assert not made[start * size : (start + count) * size].any()
        assert (made[: start * size] == 7).all()
        assert (made[(start + count) * size :] == 7).all()


@pytest.mark.parametrize("name", one_in_gate(*FLOATS, "complex64", chosen=4))
@pytest.mark.parametrize("start", [0, 1])
def test_scaling_in_place(copy, name, start):
    room = np.arange(10_000).astype(DTYPES.get(name, np.dtype(name)))
    expected = room.copy()
    expected[start:] *= expected.dtype.type(0.5)
    copy([Piece(room[start:].ctypes.data, room[start:].ctypes.data, room.size - start)], name, name, 0.5)
    np.testing.assert_array_equal(room, expected)


def test_more_elements_than_a_32_bit_number_counts(copy):
    count = (1 << 31) + 12_345
    with mmap.mmap(-1, 2 * count, PRIVATE) as source_room, mmap.mmap(-1, 4 * count, PRIVATE) as target_room:
        source, target = np.frombuffer(source_room, np.float16), np.frombuffer(target_room, np.float32)
        source[-50:] = np.arange(50)
        copy([Piece(source.ctypes.data, target.ctypes.data, count)], "float16", "float32", 2.0, ends=True)
        np.testing.assert_array_equal(target[-50:], 2.0 * np.arange(50))
        del source, target  # or the rooms could not be closed


# The kernel, compiled for GPUs ----------------------------------------------------------------------------------------


def test_the_kernel_includes_nothing():
    assert "#include" not in read_code()


@pytest.mark.full
def test_a_gpu_keeps_everything_in_registers(tmp_path):
    """No variant uses local memory, not even for the table: it is indexed, and must be read where the parameters
    are."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    (tmp_path / "all.cu").write_text(all_variants())
    command = [compiler, "-std=c++17", "-ftz=true", "-cubin", "-arch=sm_90", "-Xptxas=-v", "all.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert frames == [("0", "0", "0")] * len(VARIANTS)


@pytest.mark.full
def test_nvrtc_compiles_every_variant_without_headers():
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs cupy")
    try:
        nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(f"needs NVRTC: {error}")
    for variant in VARIANTS:
        program = nvrtc.createProgram(read_code(), "packing.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*variant.options, "-ftz=true", "-arch=compute_80"))
            ptx = nvrtc.getPTX(program)
        finally:
            nvrtc.destroyProgram(program)
        assert b".entry pack(" in ptx
        assert b".local" not in ptx
