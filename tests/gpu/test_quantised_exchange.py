"""The exchange of quantised arrays between GPUs, with ranks that are threads on the simulated one, against numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from session.tiers import one_in_gate

from distrun.runtime.backends.algorithms.base import divided
from distrun.runtime.backends.quantisation import QUANTISERS
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.nccl.library import Communicator, unique_id
from distrun.runtime.gpu.packing import Packer, Span, Tensor
from distrun.runtime.gpu.quantised import exchange
from distrun.runtime.gpu.quantised.exchange import QuantisedExchange
from distrun.runtime.gpu.quantised.kernels import Kernels
from distrun.runtime.gpu.quantised.places import Places
from distrun.runtime.gpu.quantised.steps import Resources
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.operations.request import Request, counts_of
from distrun.runtime.transport.host_layout import HostLayout
from distrun.tensor_fusion.device_quantisation import PIECES, Source

pytestmark = pytest.mark.gate
SMALL = 100
LAYOUTS = {"2+2": [0, 1, 1, 0], "1+3+1": [0, 1, 1, 2, 1], "2+2+2": [0, 1, 2, 2, 1, 0]}
"""The host of each rank."""


class Rank:
    """One rank: what it has of the job, and of the operation that is repeated."""

    def __init__(self, driver, layout, identity):
        nccl, size = driver.cupy.cuda.nccl, sum(map(len, layout.ranks))
        self.driver, self.layout = driver, layout
        self.stream = driver.new_stream()
        with driver.use:
            communicator = Communicator(nccl, size, identity, layout.rank)
        self.communicator, packer = communicator, Packer(driver)
        resources = Resources(communicator, packer, Kernels(driver), FusionMemory(driver), layout)
        self.exchange = QuantisedExchange(resources)

    def reduce(self, tensors, request, wire, feedback):
        with self.driver.use:
            self.exchange.allreduce(tensors, request, wire, feedback, self.stream.ptr)
            self.stream.synchronize()


class Job:
    """Ranks on hosts; `hosts` has the host of each."""

    def __init__(self, hosts):
        self.size = len(hosts)
        self._threads = ThreadPoolExecutor(self.size)
        driver, layouts = Driver(0), [HostLayout.of(hosts, rank) for rank in range(self.size)]
        identity = unique_id(driver.cupy.cuda.nccl)
        self.ranks = list(self._threads.map(lambda layout: Rank(driver, layout, identity), layouts))
        self.layout = layouts[0]

    def reduce(self, tensors, request, wire, feedbacks):
        calls = zip(self.ranks, tensors, feedbacks, strict=True)
        list(self._threads.map(lambda call: call[0].reduce(call[1], request, wire, call[2]), calls))

    def scatter(self, arrays, counts, results, request, wire):
        def run(rank, array, result):
            buffers = [DeviceBuffer(each.ctypes.data, each.size, each.dtype, each) for each in (array, result)]
            with rank.driver.use:
                rank.exchange.reducescatter(buffers[0], counts, buffers[1], request, wire, rank.stream.ptr)
                rank.stream.synchronize()

        list(self._threads.map(run, self.ranks, arrays, results))

    def close(self):
        list(self._threads.map(lambda rank: rank.communicator.close(), self.ranks))
        self._threads.shutdown()


@pytest.fixture(params=one_in_gate(*LAYOUTS))
def job(request, simulated, monkeypatch):
    monkeypatch.setattr(exchange, "SMALL", SMALL)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    made = Job(LAYOUTS[request.param])
    yield made
    made.close()


class Model:
    """A model of the operation in numpy, as it is defined, with an array of losses for each rank."""

    def __init__(self, layout, wire, count):
        self.layout, self.quantiser = layout, QUANTISERS[wire]()
        self.lost = [np.zeros(count, np.float32) for rank in range(sum(map(len, layout.ranks)))]
        self.now = [lost.copy() for lost in self.lost]

    def rounded(self, values, rank, part):
        raw, out = np.zeros(self.quantiser.nbytes(values.size), np.uint8), np.empty_like(values)
        self.quantiser.quantise(values, raw, (self.lost[rank][part], self.now[rank][part]))
        self.quantiser.restore(raw, out)
        return out

    def reduce(self, arrays, prescale, factor, at_once):
        """Return the result for the arrays of all ranks."""
        result, layout = np.empty_like(arrays[0]), self.layout
        number = -(-result.size // at_once)
        for rail, share in enumerate(divided(slice(0, result.size), layout.rails)):
            for piece in divided(share, number):
                for owner, part in enumerate(divided(piece, layout.count)):
                    total = None
                    for host, ranks in enumerate(layout.ranks):
                        values = arrays[ranks[0]][part] * np.float32(prescale)
                        for rank in ranks[1:]:
                            values = values + arrays[rank][part] * np.float32(prescale)
                        if host != owner:
                            values = self.rounded(values, ranks[rail], part)
                        total = values if total is None else total + values
                    result[part] = self.rounded(total * np.float32(factor), layout.ranks[owner][rail], part)
        return result

    def scatter(self, arrays, counts, prescale, factor, at_once):
        """Return the parts of all ranks."""
        number, results = -(-arrays[0].size // at_once), []
        for rank, stop in enumerate(accumulate(counts)):
            result = np.empty(counts[rank], np.float32)
            for part in divided(slice(0, counts[rank]), number):
                total = None
                for ranks in self.layout.ranks:
                    where = slice(stop - counts[rank] + part.start, stop - counts[rank] + part.stop)
                    values = arrays[ranks[0]][where] * np.float32(prescale)
                    for other in ranks[1:]:
                        values = values + arrays[other][where] * np.float32(prescale)
                    if rank not in ranks:
                        values = self.rounded(values, 0, slice(0, values.size))
                    total = values if total is None else total + values
                result[part] = total * np.float32(factor)
            results.append(result)
        return results

    def keep(self):
        self.lost, self.now = self.now, self.lost


def scattered(arrays, cuts):
    """Return each array in memory of its own, cut into spans, and where these are."""
    memory, spans = [], []
    for array in arrays:
        places = np.linspace(0, array.size, min(cuts, array.size) + 1).astype(int).tolist()
        parts = [array[start:stop].copy() for start, stop in pairwise(places)]
        memory.append(parts)
        spans.append([Span(part.ctypes.data, part.size) for part in parts])
    return memory, spans


operations = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 99) | st.integers(100, 1500), min_size=1, max_size=5).filter(
            lambda sizes: max(sizes) >= SMALL
        ),
        "cuts": st.sampled_from([1, 3, 200]),
        "in_place": st.booleans(),
        "at_once": st.sampled_from([1 << 20, 1000]),
        "op": st.sampled_from([Sum, Average]),
        "scales": st.sampled_from([(1.0, 1.0), (0.3, 1.0), (2.0, 1.7)]),
        "wire": st.sampled_from(["int8", "int4"]),
        "with_feedback": st.booleans(),
        "kept": st.lists(st.booleans(), min_size=1, max_size=3),
        "seed": st.integers(0, 9),
    }
)


def test_results_and_losses_are_those_of_the_definition(job, simulated, monkeypatch):
    @given(operations)
    def check(drawn):
        sizes, size, scales = drawn["sizes"], job.size, drawn["scales"]
        monkeypatch.setattr(exchange, "MOST_AT_ONCE", drawn["at_once"])
        request = Request("allreduce", "x", "float32", tuple((count,) for count in sizes), drawn["op"], -1, *scales)
        factor = scales[1] / (size if drawn["op"] is Average else 1)
        model, random = Model(job.layout, drawn["wire"], sum(sizes)), np.random.default_rng(drawn["seed"])
        feedbacks = [Feedback() if drawn["with_feedback"] else None for _ in range(size)]
        places = [slice(stop - count, stop) for count, stop in zip(sizes, accumulate(sizes), strict=True)]
        received, exact = np.zeros(sum(sizes)), np.zeros(sum(sizes))
        for is_kept in drawn["kept"]:
            given_ = [[random.standard_normal(count, np.float32) for count in sizes] for _ in range(size)]
            tensors, results = [], []
            for arrays in given_:
                memory, sources = scattered(arrays, drawn["cuts"])
                outputs, targets = memory, sources
                if not drawn["in_place"]:
                    outputs, targets = scattered([np.full_like(array, 7) for array in arrays], drawn["cuts"])
                tensors.append([Tensor(*each) for each in zip(sources, targets, sizes, strict=True)])
                results.append((memory, outputs))
            job.reduce(tensors, request, drawn["wire"], feedbacks)
            wholes = [
                np.concatenate([np.zeros_like(array) if array.size < SMALL else array for array in arrays])
                for arrays in given_
            ]
            expected = model.reduce(wholes, scales[0], factor, drawn["at_once"])
            for arrays, (memory, outputs) in zip(given_, results, strict=True):
                for array, inputs, parts, place in zip(arrays, memory, outputs, places, strict=True):
                    found = np.concatenate(parts)
                    if array.size < SMALL:  # they travel another way
                        expectation = array if drawn["in_place"] else np.full_like(array, 7)
                        np.testing.assert_array_equal(found, expectation)
                    else:
                        np.testing.assert_array_equal(found, expected[place])
                    if not drawn["in_place"]:
                        np.testing.assert_array_equal(np.concatenate(inputs), array)
            if not drawn["with_feedback"]:
                continue
            for feedback in feedbacks:
                feedback.keep() if is_kept else feedback.discard()
            if is_kept:
                model.keep()
                received += expected
                exact += np.sum(wholes, 0, np.float64) * scales[0] * factor
            owed = [feedback.owed(sum(sizes)) for feedback in feedbacks]
            total = sum(each.astype(np.float64) for each in owed if each is not None) * scales[0] * factor
            np.testing.assert_allclose(received + total, exact, rtol=0, atol=1e-4)
        assert not simulated.violations()

    check()


SCATTERED = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 500),
        "row": st.sampled_from([1, 3]),
        "at_once": st.sampled_from([1 << 20, 300]),
        "op": st.sampled_from([Sum, Average]),
        "scales": st.sampled_from([(1.0, 1.0), (0.3, 1.7)]),
        "wire": st.sampled_from(["int8", "int4"]),
        "seed": st.integers(0, 9),
    }
)


def test_every_rank_gets_its_part_of_what_is_scattered(job, simulated, monkeypatch):
    if not job.ranks[0].exchange.can_scatter:
        assert len({len(ranks) for ranks in job.layout.ranks}) > 1
        return

    @given(SCATTERED)
    def check(drawn):
        monkeypatch.setattr(exchange, "MOST_AT_ONCE", drawn["at_once"])
        shape, size, scales = (drawn["rows"], drawn["row"]), job.size, drawn["scales"]
        request = Request("reducescatter", "x", "float32", (shape,), drawn["op"], -1, *scales)
        counts, random = counts_of(shape, size), np.random.default_rng(drawn["seed"])
        arrays = [random.standard_normal(sum(counts), np.float32) for _ in range(size)]
        given_, results = [array.copy() for array in arrays], [np.empty(count, np.float32) for count in counts]
        job.scatter(given_, counts, results, request, drawn["wire"])
        factor = scales[1] / (size if drawn["op"] is Average else 1)
        expected = Model(job.layout, drawn["wire"], sum(counts)).scatter(
            arrays, counts, scales[0], factor, drawn["at_once"]
        )
        for result, expectation, array, before in zip(results, expected, given_, arrays, strict=True):
            np.testing.assert_array_equal(result, expectation)
            np.testing.assert_array_equal(array, before)
        assert not simulated.violations()

    check()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=9), st.integers(0, 99), st.integers(0, 99))
def test_a_part_has_the_elements_and_neighbours_are_one(drawn, start, stop):
    sources, elements, at = [], [], 4096
    for is_zero, count in drawn:
        sources.append(Source(0 if is_zero else at, count))
        elements += [0] * count if is_zero else range(at, at + 4 * count, 4)
        at += 4 * count
    places = Places(sources, 7)
    assert places.count == len(elements)
    found = places.part(slice(7 + start, 7 + stop))
    memory = [place and place + 4 * step for place, count in found for step in range(count)]
    assert memory == elements[start:stop]
    for (one, count), (other, _) in pairwise(found):
        assert other != (one and one + 4 * count)
    assert len(found) <= PIECES
