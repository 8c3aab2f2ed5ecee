"""Named and unnamed operations, repeated so that small arrays travel with the messages that submit them."""

import os
from dataclasses import dataclass

import numpy as np
import reference
from hypothesis import strategies as st

import distrun
from distrun.runtime.negotiation.eager import piggyback, sends
from distrun.runtime.operations.reduction import check_op
from examples import DTYPES, SameEverywhere, collect, dtype_of, lay_out

distrun.init()
me, size = distrun.rank(), distrun.size()
piggybacked = 0
finish = piggyback.Piggyback.finish


def counted(*arguments):
    global piggybacked
    piggybacked += 1
    return finish(*arguments)


piggyback.Piggyback.finish = counted
crossed = 0


def counted_crossing(*arguments):
    global crossed
    crossed += 1
    return cross(*arguments)


cross = sends.Eager._cross
sends.Eager._cross = counted_crossing


@dataclass(frozen=True)
class Case:
    dtype: str
    counts: tuple[int, ...]  # of each tensor of a group
    op: object
    factors: tuple[float, float]
    layout: str
    in_place: bool


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(DTYPES))
    ops = [distrun.Average, distrun.Sum, distrun.Product]
    op = draw(st.sampled_from(ops if dtype.startswith(("complex", "clong")) else [*ops, distrun.Min, distrun.Max]))
    check_op(op, dtype if dtype == "bfloat16" else dtype_of(dtype).name)
    edge = draw(st.sampled_from([piggyback.SMALL // (size - 1), piggyback.SMALL_PAIR])) // dtype_of(dtype).itemsize
    counts = draw(st.lists(st.sampled_from([0, 1, 5, 100]), min_size=1, max_size=3))
    if draw(st.integers(0, 3)) == 0:
        counts = [edge + draw(st.integers(-1, 1))]
    factors = draw(st.sampled_from([(1.0, 1.0), (1.0, 1.0), (0.5, 2.0)]))
    return Case(
        dtype, tuple(counts), op, factors, draw(st.sampled_from(["C", "shared", "strided"])), draw(st.booleans())
    )


def values(case: Case, turn: int, rank: int) -> list[np.ndarray]:
    """Numbers whose sums and products mostly stay exact; and NaN, infinities and tiny numbers where there are any."""
    generator = np.random.default_rng([turn, rank, 5])
    found = []
    for count in case.counts:
        part = generator.integers(0, 3, count).astype(dtype_of(case.dtype))
        if part.dtype.kind == "f" and case.factors == (1.0, 1.0):
            odd = generator.choice([np.inf, -np.inf, np.nan, -0.0, 6e4, 1e-7], count).astype(part.dtype)
            part = np.where(generator.random(count) < 0.1, odd, part)
        found.append(part)
    return found


def check(case: Case, turn: int, results: list[np.ndarray]) -> None:
    everybodys = [values(case, turn, rank) for rank in range(size)]
    for place, result in enumerate(results):
        expected = reference.reduce([parts[place] for parts in everybodys], case.op, *case.factors)
        reference.check(result, expected, exact=False)
        same.add(result)


same = SameEverywhere()
for number, case in enumerate(collect(cases(), 80)):
    for turn in range(4):
        given = [lay_out(part, case.layout) for part in values(case, turn, me)]
        alone = turn < 2 or (turn == 2) == (me % 2 == 0)  # sometimes it is not the only thing that a rank submits
        other = None if alone else distrun.allreduce_async(np.ones(2), "other", distrun.Sum)
        reduce = distrun.grouped_allreduce_ if case.in_place else distrun.grouped_allreduce
        results = reduce(given, f"case.{number}" if number % 2 else None, case.op, *case.factors)
        if alone and turn >= 2:
            other = distrun.allreduce_async(np.ones(2), "other", distrun.Sum)
        assert other is None or other.wait().tolist() == [size] * 2
        try:
            check(case, turn, results)
        except AssertionError as error:
            raise AssertionError(f"{case}, turn {turn}: {error}") from error
same.check()
piggyback.Piggyback.finish, sends.Eager._cross = finish, cross  # this process may run other programs afterwards
makes_offers = size == 2 and os.environ["DISTRUN_STALL_TIMEOUT"] == "0"
assert (piggybacked > 0) == (me == 0 or makes_offers), "nothing travelled with its message"
assert (crossed > 0) == makes_offers, "no offers have crossed"

# A name may change what it stands for while some ranks have sent something along for what it was.
for turn in range(30):
    shape = 3 if turn % 3 else 4
    assert distrun.allreduce(np.full(shape, me), "changing", distrun.Sum).tolist() == [size * (size - 1) // 2] * shape
for turn in range(12):
    try:
        name = "disputed" if turn < 6 else None
        result = distrun.allreduce(np.full(3 if turn % 2 or me else 5, me), name, distrun.Max)
        assert turn % 2
        assert result.tolist() == [size - 1] * 3
    except distrun.MismatchError:
        assert turn % 2 == 0
