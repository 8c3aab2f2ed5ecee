"""Every algorithm between hosts equals numpy, for any number of hosts, and all ranks hold the same bits."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st
from in_process.hosts_of_threads import (
    DTYPES,
    cases,
    check_allreduce,
    check_broadcast,
    check_reducescatter,
    dtype_of,
    on_ranks,
    plain,
)
from session.hypothesis_profiles import examples
from session.tiers import one_in_gate

from distrun.contract.settings import ALGORITHMS, AUTO, DIRECT, HALVING_DOUBLING, RING, TREE
from distrun.runtime.backends.adasum import adasum
from distrun.runtime.backends.algorithms import choice
from distrun.runtime.backends.algorithms.base import ARENA_LIMIT, Arena
from distrun.runtime.backends.algorithms.choice import EQUAL, WHOLE, arranged, choose, choose_broadcast, slow_hosts
from distrun.runtime.backends.algorithms.tree import place_in_tree
from distrun.runtime.operations.reduction import Adasum, Average, Max, Min, Product, Sum
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.wire import Wire

FORCED = [name for name in ALGORITHMS if name != AUTO]
STEPWISE = [RING, HALVING_DOUBLING, TREE]
LAYOUTS = [*((1,) * hosts for hosts in range(2, 10)), (2, 1), (1, 2, 3), (2, 2, 2, 2), (1, 1, 2, 1, 1), (3, 2, 2)]
"""Ranks of each host."""
SOME_LAYOUTS = [(1, 1, 1), (1, 2, 3), (1,) * 7, (1,) * 8]


@pytest.mark.parametrize("algorithm", FORCED)
@given(cases(), st.sampled_from(LAYOUTS))
def test_any_allreduce_is_right_and_has_the_same_bits_everywhere(small_pieces, algorithm, case, counts):
    is_exact = case["op"] in (Min, Max) or dtype_of(case["dtype"]).kind in "iub"
    if algorithm != DIRECT and not is_exact:
        case["kind"] = "small"  # the order in which large floats are added up shows
    check_allreduce(**{**case, "counts": counts}, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", STEPWISE)
@pytest.mark.parametrize("counts", one_in_gate(*SOME_LAYOUTS, chosen=1), ids=str)
def test_every_type_and_operator(small_pieces, algorithm, counts):
    for dtype in DTYPES:
        for op in (Sum, Average, Min, Max, Product):
            if op in (Min, Max) and ("complex" in dtype or dtype == "clongdouble"):
                continue
            check_allreduce(counts, dtype, op, 700, 3, "small", algorithm=algorithm, form="shared in place")


@pytest.mark.parametrize("algorithm", [AUTO, *STEPWISE])
@pytest.mark.parametrize("counts", [*SOME_LAYOUTS, (1, 1), (2, 2)], ids=str)
def test_averages_of_large_numbers_in_half_precision_do_not_overflow(small_pieces, algorithm, counts):
    def work(backend, count):
        array = np.full(count, 65504, np.float16)
        backend.allreduce([array], [array], plain("float16", Average, backend.size), "it")
        return array

    for count in (7, 5000):
        for result in on_ranks(counts, partial(work, count=count), algorithm=algorithm):
            np.testing.assert_allclose(result.astype(np.float64), 65504, rtol=0.002 if algorithm == AUTO else 0.005)


@pytest.mark.parametrize("algorithm", [AUTO, *STEPWISE])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@examples(gate=8, full=50)
@given(
    counts=st.sampled_from(LAYOUTS),
    count=st.integers(1, 3000),
    seed=st.integers(0, 99),
    op=st.sampled_from([Sum, Average]),
    form=st.sampled_from(["new", "in place", "shared in place"]),
    is_late=st.booleans(),
)
def test_half_precision_on_the_wire(small_pieces, algorithm, wire, dtype, counts, count, seed, op, form, is_late):
    arrays, result = check_allreduce(
        counts, dtype, op, count, seed, "small", form=form, is_late=is_late, wire=Wire(wire), algorithm=algorithm
    )
    exact = sum(arrays) / (len(arrays) if op == Average else 1)
    rounding = 2.0**-8 if wire == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(result, exact, rtol=(len(counts) + 1) * rounding, atol=1e-6)


@pytest.mark.parametrize("algorithm", STEPWISE)
def test_what_is_quantised_is_exchanged_directly(small_pieces, algorithm):
    _, forced = check_allreduce((1, 2, 1), "float32", Sum, 9000, 4, "small", wire=Wire("int8"), algorithm=algorithm)
    _, direct = check_allreduce((1, 2, 1), "float32", Sum, 9000, 4, "small", wire=Wire("int8"), algorithm=DIRECT)
    assert forced.tobytes() == direct.tobytes()


@pytest.mark.parametrize("algorithm", [DIRECT, HALVING_DOUBLING, TREE])
@pytest.mark.parametrize("hosts", one_in_gate(3, 5, 8, 9, chosen=1))
def test_the_order_of_summation_does_not_depend_on_the_place_in_an_array(small_pieces, algorithm, hosts):
    """A tensor becomes the same whatever it is fused with; in a ring alone it does not."""
    arrays = [np.random.default_rng(rank).standard_normal(3000).astype(np.float32) for rank in range(hosts)]

    def work(backend, start):
        array = np.concatenate([np.ones(start, np.float32), arrays[backend.rank]])
        backend.allreduce([array], [array], plain("float32", Sum, hosts), "it")
        return array[start:].tobytes()

    found = set()
    for start in (0, 1, 900, 4000):
        found.update(on_ranks((1,) * hosts, partial(work, start=start), algorithm=algorithm))
    assert len(found) == 1


@pytest.mark.parametrize("counts", one_in_gate(*LAYOUTS, chosen=LAYOUTS.index((3, 2, 2))), ids=str)
@pytest.mark.parametrize("algorithm", [AUTO, TREE])
@pytest.mark.parametrize("is_late", [False, True])
def test_broadcast(small_pieces, monkeypatch, counts, algorithm, is_late):
    monkeypatch.setattr(choice, "FEW_HOSTS", 2 if algorithm == TREE else 8)
    for count, root in ((0, 0), (1, 1), (4000, 0), (3001, sum(counts) - 1), (5000, 2)):
        check_broadcast(counts, count, root, is_late, algorithm)


@pytest.mark.parametrize("algorithm", STEPWISE)
@pytest.mark.parametrize("op", [Sum, Average])
def test_reducescatter(small_pieces, algorithm, op):
    for counts in LAYOUTS:
        check_reducescatter(counts, "float32", op, [7 * rank for rank in range(sum(counts))], True, algorithm)


@pytest.mark.parametrize("algorithm", STEPWISE)
def test_adasum_of_equal_gradients_is_their_average(small_pieces, algorithm):
    def work(backend):
        array = np.arange(1.0, 901.0, dtype=np.float32)
        request = Request("allreduce", "it", "float32", ((900,),), op=Adasum)
        adasum(backend, [array], [array], request, [900], False, 0.0, "it")
        return array

    results = on_ranks((1, 2, 1), work, algorithm=algorithm)
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], np.arange(1.0, 901.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("nbytes", "hosts", "slow", "wire", "wanted", "chosen"),
    [
        (4 << 10, 2, (), "", AUTO, WHOLE),
        (1 << 20, 2, (), "", AUTO, WHOLE),
        ((1 << 20) + 4, 2, (), "", AUTO, DIRECT),
        (100 << 20, 8, (), "", AUTO, DIRECT),
        (4 << 10, 9, (), "", AUTO, WHOLE),
        (16 << 10, 9, (), "", AUTO, TREE),
        (4 << 10, 64, (), "", AUTO, TREE),
        (1 << 20, 64, (), "", AUTO, HALVING_DOUBLING),
        (100 << 20, 16, (), "", AUTO, HALVING_DOUBLING),
        (100 << 20, 12, (), "", AUTO, RING),
        (256 << 10, 12, (), "", AUTO, HALVING_DOUBLING),
        (100 << 20, 4, (2,), "", AUTO, TREE),
        (100 << 20, 16, (2, 3), "", AUTO, TREE),
        (100 << 20, 4, (1, 2, 3), "", AUTO, DIRECT),
        (100 << 10, 4, (2,), "", AUTO, DIRECT),
        (100 << 20, 16, (), "int8", AUTO, DIRECT),
        (100 << 20, 16, (1,), "int4", RING, DIRECT),
        (100 << 20, 16, (), "bfloat16", AUTO, HALVING_DOUBLING),
        (4, 2, (), "", RING, RING),
        (4, 2, (), "", DIRECT, WHOLE),
        (100 << 20, 2, (), "", TREE, TREE),
    ],
)
def test_the_algorithm_follows_from_size_hosts_and_links(nbytes, hosts, slow, wire, wanted, chosen):
    assert choose(nbytes, hosts, frozenset(slow), Wire(wire), wanted) == chosen


def test_broadcasts_are_pipelined_in_a_tree_where_hosts_are_many_or_links_slow():
    assert choose_broadcast(100 << 20, 8) == DIRECT
    assert choose_broadcast(100 << 20, 9) == TREE
    assert choose_broadcast(100 << 20, 4, frozenset({1})) == TREE


@pytest.mark.parametrize("hosts", range(2, 40))
def test_slow_hosts_are_leaves_of_the_tree(hosts):
    slow = frozenset(range(0, hosts if hosts % 2 == 0 else hosts - 1, 2))
    order = arranged(hosts, slow)
    assert sorted(order) == list(range(hosts))
    for root in (order[0], order[-1]):
        places = {host: place_in_tree(tuple(order), host, root) for host in order}
        assert [host for host in order if places[host].parent is None] == [root]
        for host, place in places.items():
            assert all(places[child].parent == host for child in place.children)
            assert len(place.children) + (place.parent is not None) <= 3
            if host in slow:
                assert len(place.children) + (place.parent is not None) == 1
    assert arranged(hosts, EQUAL) == list(range(hosts))


def test_links_are_slow_that_take_much_longer_than_most():
    assert slow_hosts([0.001, 0.001, 0.0011, 0.009]) == {3}
    assert slow_hosts([0.001, 0.001, 0.0011, 0.005]) == set()  # so little is how processes are scheduled
    assert slow_hosts([0.1, 0.11, 0.29]) == set()
    assert slow_hosts([0.1, 0.9, 0.11, 0.8]) == set()  # half of them: which are the usual ones?
    assert slow_hosts([0.1, 0.9, 0.11, 0.8, 0.1]) == {1, 3}


@pytest.mark.parametrize("counts", [(1,) * 3, (1,) * 5, (2, 2, 1, 2), (1,) * 8], ids=str)
def test_slow_links_are_measured_once_and_then_change_the_algorithm(small_pieces, monkeypatch, counts):
    """The ranks of every rail draw the same conclusions, and go on with the same algorithm."""
    measured = []

    def measure(*arguments):
        measured.append(real(*arguments))
        return frozenset({0})

    from distrun.runtime.backends import rail

    real = rail.measure
    monkeypatch.setattr(rail, "measure", measure)
    monkeypatch.setattr(rail, "MEASURED_FROM", 4096)
    monkeypatch.setattr(choice, "MEASURED_FROM", 4096)

    def work(backend):
        how = plain("int64", Sum, backend.size)
        for count in (10, 2000, 3000):
            array = np.full(count, backend.rank)
            backend.allreduce([array], [array], how, "it")
            assert (array == sum(range(backend.size))).all()
        array = np.full(2000, backend.rank)
        backend.broadcast(array, 1, "it")
        assert (array == 1).all()
        return sorted(backend._rail._algorithms)

    found = on_ranks(counts, work, is_late=False)
    assert len(measured) == len(counts) * min(counts)
    assert all("tree" in names for names in found[: min(counts)])


@given(
    operations=st.lists(
        st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(["u1", "f4", "f8"])), max_size=8), max_size=5
    )
)
def test_arrays_of_an_arena_keep_what_is_written_until_the_next_operation(operations):
    arena = Arena()
    for wanted in operations:
        empty = arena.begin(1000)
        arrays = [empty(count, np.dtype(dtype)) for count, dtype in wanted]
        for number, array in enumerate(arrays):
            array[:] = number
        for number, ((count, dtype), array) in enumerate(zip(wanted, arrays, strict=True)):
            assert (array.dtype, array.size) == (dtype, count)
            assert (array == number).all()


def test_an_arena_keeps_its_memory_for_small_operations_alone():
    arena = Arena()
    arrays = []
    for _ in range(3):
        empty = arena.begin(ARENA_LIMIT)
        arrays.append([empty(count, np.dtype("f4")) for count in (3, 100)])
    addresses = [[array.ctypes.data for array in each] for each in arrays]
    assert addresses[1] == addresses[2]  # the first operation showed how much they need
    assert arena.begin(ARENA_LIMIT + 1) is np.empty
