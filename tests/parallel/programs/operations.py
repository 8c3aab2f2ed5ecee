"""Every collective in each of its forms, of one tensor and of groups, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
from hypothesis import strategies as st

import distrun
from examples import DTYPES, SameEverywhere, Tensor, dtype_of, perform_each, tensors

OPS = (distrun.Average, distrun.Sum, distrun.Min, distrun.Max, distrun.Product)
_OF_GROUPS = ["float32", "float32", "float64", "bfloat16", "int8"]


@dataclass(frozen=True)
class Case:
    """A call of a collective, the same on all ranks of a process set but for the values of the tensors."""

    kind: str
    tensors: tuple[Tensor, ...]
    is_group: bool
    op: distrun.ReduceOp
    prescale: float
    postscale: float
    root: int
    extra: tuple[int, ...]
    """The rows that the ranks have more than their shapes say, or fewer, where that is allowed."""
    splits: str
    """The splits of alltoall: `even`, with none given, `uneven`, some of them 0, or `one`, all rows for the root."""
    form: str
    named: bool

    def rows(self, tensor: Tensor, rank: int, size: int) -> int | None:
        """Return the rows of a rank's tensor; None if its shape says them."""
        if self.kind == "allgather" and not self.is_group:
            return max(0, tensor.shape[0] + self.extra[rank])
        return sum(self.parts(rank, size)) if self.kind == "alltoall" else None

    def parts(self, rank: int, size: int) -> list[int]:
        """Return the rows that a rank sends to each of the others by alltoall."""
        tensor = self.tensors[0]
        if self.splits == "one":
            return [tensor.shape[0] * (place == self.root % size) for place in range(size)]
        if self.splits == "even":
            return [tensor.shape[0]] * size
        generator = np.random.default_rng([tensor.seed, 77, rank])
        rows = generator.integers(0, tensor.shape[0] + 1, size)
        return [int(count) for count in rows * (generator.random(size) < 0.8)]


@st.composite
def cases(
    draw: st.DrawFn, kinds: Sequence[str], is_group: bool = False, tensor: st.SearchStrategy[Tensor] | None = None
) -> Case:
    """Draw a call of one of the kinds, of any tensor or of one that `tensor` draws; a group has no factors."""
    kind = draw(st.sampled_from(kinds))
    reduces, may_overwrite = kind in ("allreduce", "reducescatter"), kind in ("allreduce", "broadcast")
    scaled = reduces and not is_group and draw(st.booleans())
    values, dtypes = ("small",) if scaled else ("any", "special"), _OF_GROUPS if is_group else DTYPES
    members = tensor or tensors(0 if may_overwrite else 1, values, dtypes)
    group = draw(st.lists(members, min_size=1, max_size=6 if is_group else 1))
    op = draw(st.sampled_from(OPS if kind == "allreduce" and not is_group else OPS[:2]))
    if group[0].dtype.startswith(("complex", "clong")) and op in (distrun.Min, distrun.Max):
        op = distrun.Sum
    factors = [1.0, 0.5, 2.0] if dtype_of(group[0].dtype).kind in "iu" else [1.0, 0.5, -1.5, 1 / 3]
    extra = st.sampled_from([0, -1, 1, 3, -(group[0].shape or (0,))[0]])
    return Case(
        kind,
        tuple(group),
        is_group,
        op,
        *(draw(st.sampled_from(factors)) if scaled else 1.0 for _ in range(2)),
        root=draw(st.integers(0, 3)),
        extra=tuple(draw(st.lists(extra, min_size=4, max_size=4))),
        splits=draw(st.sampled_from(["even", "uneven", "one"])),
        form=draw(st.sampled_from(["new", "async", *(["in place", "async in place"] if may_overwrite else [])])),
        named=draw(st.booleans()),
    )


def start(case: Case, name: str | None, process_set: distrun.ProcessSet) -> Callable[[], list[Any]]:
    """Make the call; return a function that waits for its results, checks them and returns them."""
    me, size = process_set.rank(), process_set.size()
    given = [tensor.on(me, case.rows(tensor, me, size)) for tensor in case.tensors]
    before = [array.copy() for array in given]
    options: dict[str, Any] = {"name": name, "process_set": process_set}
    if case.kind in ("allreduce", "reducescatter"):
        options |= {"op": case.op, "prescale_factor": case.prescale, "postscale_factor": case.postscale}
    elif case.kind == "broadcast":
        options["root_rank"] = process_set.ranks[case.root % size]
    elif case.kind == "alltoall" and case.splits != "even":
        parts = case.parts(me, size)
        options["splits"] = np.array(parts) if case.form == "async" else parts
    words = ["grouped" if case.is_group else "", case.kind, "async" if "async" in case.form else ""]
    function = getattr(distrun, "_".join(filter(None, words)) + ("_" if "in place" in case.form else ""))
    called = function(given if case.is_group else given[0], **options)

    def finish() -> list[Any]:
        result = called
        if "async" in case.form:
            result = distrun.synchronize(called) if case.root % 2 else called.wait()
            assert called.poll()
        if case.kind == "alltoall" and case.splits != "even":
            result, received = result
            assert received.dtype == np.int32
            assert received.tolist() == [case.parts(rank, size)[me] for rank in range(size)]
        results = result if case.is_group else [result]
        _check(case, results, process_set)
        for mine, array, old in zip(results, given, before, strict=True):
            if "in place" in case.form:
                assert mine is array
            else:
                assert not np.shares_memory(mine, array)
                assert array.tobytes() == old.tobytes(), "the input has changed"
        return list(results)

    return finish


def _check(case: Case, results: Sequence[Any], process_set: distrun.ProcessSet) -> None:
    me, size = process_set.rank(), process_set.size()
    for tensor, result in zip(case.tensors, results, strict=True):
        arrays = [tensor.plain(rank, case.rows(tensor, rank, size)) for rank in range(size)]
        exact = True
        if case.kind == "broadcast":
            expected = arrays[case.root % size]
        elif case.kind == "allgather":
            expected = np.concatenate(arrays)
        elif case.kind == "alltoall":
            sent = [case.parts(rank, size) for rank in range(size)]
            pieces = zip(arrays, [sum(parts[:me]) for parts in sent], sent, strict=True)
            expected = np.concatenate([array[start : start + parts[me]] for array, start, parts in pieces])
        else:
            expected = reference.reduce(arrays, case.op, case.prescale, case.postscale, process_set)
            exact = case.op != distrun.Average and case.prescale == case.postscale == 1.0
            # numpy multiplies complex numbers with or without fused instructions, as the arrays happen to lie.
            exact &= case.op != distrun.Product or expected.dtype.kind != "c"
            expected = np.array_split(expected, size)[me] if case.kind == "reducescatter" else expected
        reference.check(result, expected, exact)


class Results:
    """Results that must have the same bits on all ranks of their process set."""

    def __init__(self) -> None:
        self._same = SameEverywhere()

    def add(self, case: Case, results: Sequence[Any], process_set: distrun.ProcessSet) -> None:
        """Add the results of a case, if its kind gives all ranks the same."""
        for result in results if case.kind in ("allreduce", "allgather", "broadcast") else ():
            self._same.add(result, process_set)

    def check(self) -> None:
        """Compare the results of all ranks."""
        self._same.check()


def perform_all(
    count: int, *kinds: str, is_group: bool = False, tensor: st.SearchStrategy[Tensor] | None = None
) -> None:
    """Make `count` calls of the collectives of some kinds, as `cases` draws them, in the world and in process sets."""
    distrun.init()
    reference.hosts()
    found = Results()

    def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
        found.add(case, start(case, name, process_set)(), process_set)

    perform_each(cases(kinds, is_group, tensor), count, perform)
    found.check()
