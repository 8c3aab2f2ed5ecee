"""Allreduces between hosts in the job's wire dtype: within its bounds, and the same bits on all ranks of a set.

The bounds hold whichever way an array takes: each host's share is rounded once on its way to where it is added up, and
the sum once on its way back.
"""

import os
from dataclasses import dataclass

import numpy as np
import reference
from hypothesis import strategies as st

import distrun
from distrun.runtime.operations.wire import SMALL
from examples import SameEverywhere, perform_each

WIRE = os.environ["DISTRUN_WIRE_DTYPE"]
LOST = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 1 / 254, "int4": 5 / 18}[WIRE]
"""The most that is lost when numbers are rounded: of the largest number, or with half precision of each."""
IS_QUANTISED = WIRE.startswith("int")


@dataclass(frozen=True)
class Case:
    dtype: str
    counts: tuple[int, ...]
    op: object
    seed: int
    named: bool


sizes = st.one_of(st.integers(0, 300), st.sampled_from([SMALL - 1, SMALL, SMALL + 1, 65_537, 300_001]))
cases = st.builds(
    Case,
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "int32"]),
    counts=st.lists(sizes, min_size=1, max_size=3).map(tuple),
    op=st.sampled_from([distrun.Average, distrun.Sum, distrun.Max]),
    seed=st.integers(0, 2**31),
    named=st.booleans(),
)


def array_of(case: Case, place: int, rank: int) -> np.ndarray:
    generator = np.random.default_rng([case.seed, place, rank])
    return (generator.standard_normal(case.counts[place]) * 10).astype(case.dtype)


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    mine = [array_of(case, place, process_set.rank()) for place in range(len(case.counts))]
    results = distrun.grouped_allreduce(mine, name, case.op, process_set=process_set)
    hosts = reference.hosts_of(process_set)
    for place, result in enumerate(results):
        same.add(result, process_set)
        arrays = [array_of(case, place, rank) for rank in range(process_set.size())]
        expected = reference.reduce(arrays, case.op, 1.0, 1.0, process_set)
        is_rounded = len(hosts) > 1 and case.dtype in ("float32", "float64")
        if IS_QUANTISED and (case.op == distrun.Max or case.counts[place] < SMALL):
            is_rounded = False
        if not is_rounded:
            reference.check(result, expected, exact=case.op != distrun.Average)
            continue
        if case.op == distrun.Max:
            assert (np.abs(result - expected) <= LOST * np.abs(expected) + 1e-7).all()
            continue
        wide = [array.astype(np.float64) for array in arrays]
        divisor = len(arrays) if case.op == distrun.Average else 1
        shares = [np.abs(sum(wide[rank] for rank in ranks)) / divisor for ranks in hosts]
        if IS_QUANTISED:
            shares = [share.max(initial=0) for share in shares]
        sent = LOST * sum(shares)
        bound = sent + LOST * (sum(shares) + sent) + 1e-5 * sum(shares) + 1e-7
        error = np.abs(result - sum(wide) / divisor)
        assert (error <= bound).all(), (place, error.max(), np.max(bound))


distrun.init()
same = SameEverywhere()
reference.hosts()
perform_each(cases, 28, perform)
same.check()
distrun.shutdown()
