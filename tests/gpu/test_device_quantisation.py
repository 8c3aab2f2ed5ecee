"""Quantisation on a GPU: the kernels, compiled for the CPU, have the bits of the host's quantisation."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from session.tiers import one_in_gate

from distrun.runtime.backends.quantisation import BLOCK, Integers, Powers
from distrun.tensor_fusion import device_quantisation as device
from distrun.tensor_fusion.device_quantisation import QUANTISED, SOURCES, SUM, Addend, Source, nbytes

pytestmark = pytest.mark.gate
PRELUDE = Path(__file__).parents[1] / "simulator" / "kernel_prelude.h"
RUN = """
#include "{prelude}"
#include "quantising.cu"
template <typename Table, typename Kernel> void run(Kernel kernel, const Table& table, unsigned blocks) {{
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++) kernel(table);
}}
extern "C" void run_quantise(const Quantised* table, unsigned blocks) {{ run(quantise, *table, blocks); }}
extern "C" void run_add_up(const Sum* table, unsigned blocks) {{ run(add_up, *table, blocks); }}
"""


@pytest.fixture(scope="session", params=[8, 4])
def kernels(request, tmp_path_factory):
    """The bits of a code, and the library with the kernels for them."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    room = tmp_path_factory.mktemp("quantising")
    (room / "all.cpp").write_text(RUN.format(prelude=PRELUDE))
    (room / "quantising.cu").write_text(device.read_code())
    command = [compiler, *device.options(request.param), "-O1", "-ffp-contract=off", "-shared", "-fPIC", "all.cpp"]
    subprocess.run([*command, "-o", "all.so"], cwd=room, check=True)
    return request.param, ctypes.CDLL(str(room / "all.so"))


def run(function, planned):
    table, blocks = planned
    function(ctypes.c_void_p(table.ctypes.data), ctypes.c_uint(blocks))


def gradients(seed, counts):
    """Return arrays of normal numbers, of very different sizes."""
    generator = np.random.default_rng(seed)
    return [
        (generator.standard_normal(count) * 10.0 ** generator.integers(-42, 30)).astype(np.float32) for count in counts
    ]


QUANTISERS = {8: Integers, 4: Powers}
counts = st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=device.PIECES)


@given(counts=counts, seed=st.integers(0, 99), missing=st.booleans(), factor=st.sampled_from([1.0, 0.25, 1 / 3]))
def test_gradients_are_packed_and_quantised_as_on_the_host(kernels, counts, seed, missing, factor):
    bits, library = kernels
    pieces, quantiser = gradients(seed, counts), QUANTISERS[bits]()
    if missing:
        pieces[0][:] = 0
    sources = [
        Source(0 if missing and place == 0 else part.ctypes.data, part.size) for place, part in enumerate(pieces)
    ]
    values = np.concatenate(pieces) * np.float32(factor)
    lost = gradients(seed + 100, [values.size])[0]
    raws = [np.zeros(quantiser.nbytes(values.size), np.uint8) for _ in range(2)]
    nows = [np.full(values.size, np.nan, np.float32) for _ in range(2)]
    quantiser.quantise(values, raws[0], (lost, nows[0]))
    planned = device.quantising(sources, raws[1].ctypes.data, factor, (lost.ctypes.data, nows[1].ctypes.data))
    run(library.run_quantise, planned)
    sums = [np.empty(values.size, np.float32) for _ in range(2)]
    for raw, total in zip(raws, sums, strict=True):
        quantiser.restore(raw, total)
    np.testing.assert_array_equal(sums[0], sums[1])
    np.testing.assert_array_equal(nows[0], nows[1])
    np.testing.assert_array_equal(raws[0][: 4 * -(-values.size // BLOCK)], raws[1][: 4 * -(-values.size // BLOCK)])


@given(
    are_plain=st.lists(st.booleans(), min_size=1, max_size=5) | st.lists(st.booleans(), min_size=140, max_size=140),
    count=st.integers(1, 5 * BLOCK),
    seed=st.integers(0, 99),
)
def test_sums_are_those_of_the_host_in_its_order(kernels, are_plain, count, seed):
    bits, library = kernels
    quantiser, arrays, expected = QUANTISERS[bits](), [], None
    for values, is_plain in zip(gradients(seed, [count] * len(are_plain)), are_plain, strict=True):
        restored = values
        if is_plain:
            arrays.append(values)
        else:
            arrays.append(np.zeros(quantiser.nbytes(count), np.uint8))
            quantiser.quantise(values, arrays[-1])
            restored = np.empty(count, np.float32)
            quantiser.restore(arrays[-1], restored)
        expected = restored if expected is None else expected + restored
    addends = [Addend(array.ctypes.data, is_plain) for array, is_plain in zip(arrays, are_plain, strict=True)]
    out = arrays[0] if are_plain[0] else np.empty(count, np.float32)
    planned = list(device.adding_up(addends, count, out.ctypes.data, 1 / len(addends)))
    assert len(planned) == 1 + max(0, -(-(len(addends) - SOURCES) // (SOURCES - 1)))
    for launch in planned:
        run(library.run_add_up, launch)
    np.testing.assert_array_equal(out, expected * np.float32(1 / len(addends)))


@given(st.integers(0, 10 * BLOCK))
def test_arrays_have_as_many_bytes_as_on_the_host(count):
    assert [nbytes(count, bits) for bits in QUANTISERS] == [kind().nbytes(count) for kind in QUANTISERS.values()]


def test_the_tables_have_the_layout_of_the_kernels_parameters(tmp_path):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    same = [
        f"static_assert(offsetof({name}, {field}) == {table.fields[field][1]} && sizeof({name}) == {table.itemsize});"
        for name, table in (("Quantised", QUANTISED), ("Sum", SUM))
        for field in table.names
    ]
    code = "\n".join([f'#include "{PRELUDE}"', "#include <cstddef>", device.read_code(), *same])
    command = [compiler, *device.options(8), "-fsyntax-only", "-x", "c++", "-"]
    subprocess.run(command, input=code, text=True, check=True)
    assert max(SUM.itemsize, QUANTISED.itemsize) <= 4096


@pytest.mark.parametrize("odd", one_in_gate(np.inf, -np.inf, np.nan))
def test_a_block_that_is_not_finite_comes_back_without_finite_numbers_and_loses_nothing(kernels, odd):
    bits, library = kernels
    values, lost, now = (np.ones(3 * BLOCK, np.float32) for _ in range(3))
    values[BLOCK + 9] = odd
    raw, out = np.zeros(QUANTISERS[bits]().nbytes(values.size), np.uint8), np.empty(values.size, np.float32)
    source = Source(values.ctypes.data, values.size)
    run(
        library.run_quantise,
        device.quantising([source], raw.ctypes.data, residuals=(lost.ctypes.data, now.ctypes.data)),
    )
    QUANTISERS[bits]().restore(raw, out)
    assert not np.isfinite(out[BLOCK : 2 * BLOCK]).any()
    assert (out[:BLOCK] == 2).all()
    assert not now.any()


@pytest.mark.parametrize("bits", one_in_gate(8, 4))
def test_nvrtc_compiles_the_kernels_without_headers(bits):
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="needs cupy")
    try:
        nvrtc.getVersion()
    except RuntimeError as error:
        pytest.skip(f"needs NVRTC: {error}")
    program = nvrtc.createProgram(device.read_code(), "quantising.cu", (), ())
    nvrtc.compileProgram(program, device.options(bits))
    nvrtc.destroyProgram(program)
