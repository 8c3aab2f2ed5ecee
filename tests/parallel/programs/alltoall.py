"""Alltoall against slices of everybody's tensor, with and without splits."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from refusals import refuse

import distrun
from examples import Tensor, perform_each, same, tensors


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    even: bool
    form: str
    named: bool

    def splits(self, rank: int, size: int) -> list[int]:
        """Return the rows that `rank` sends to each of so many ranks; some send none to some ranks, or to any."""
        if self.even:
            return [self.tensor.shape[0]] * size
        generator = np.random.default_rng([self.tensor.seed, 77, rank])
        rows = generator.integers(0, self.tensor.shape[0] + 1, size)
        return [int(count) for count in rows * (generator.random(size) < 0.8)]


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    me, size = process_set.rank(), process_set.size()
    splits = case.splits(me, size)
    given = case.tensor.on(me, sum(splits))
    explicit = None if case.even else splits
    if case.form == "now":
        result = distrun.alltoall(given, explicit, name, process_set)
    else:
        explicit = None if explicit is None else np.array(explicit)
        result = distrun.alltoall_async(given, explicit, name, process_set).wait()
    pieces = []
    for rank in range(size):
        theirs = case.splits(rank, size)
        start = sum(theirs[:me])
        pieces.append(case.tensor.plain(rank, sum(theirs))[start : start + theirs[me]])
    if not case.even:
        result, received = result
        assert received.dtype == np.int32
        assert received.tolist() == [len(piece) for piece in pieces]
    same(result, np.concatenate(pieces))


distrun.init()
cases = st.builds(
    Case,
    tensors(min_dims=1, values=("any", "special")),
    st.booleans(),
    st.sampled_from(["now", "async"]),
    st.booleans(),
)
perform_each(cases, 120, perform)


def refused(text: str, *arguments: object) -> None:
    refuse(distrun.UsageError, text, lambda: distrun.alltoall(*arguments))


size = distrun.size()
refused("does not come out even: give `splits`", np.ones(size + 1))
refused("sum to", np.ones(size), [2] * size)
refused("whole numbers >= 0", np.ones(size), [1] * (size + 1))
refused("whole numbers >= 0", np.ones(size), [1.0] * size)
refused("whole numbers >= 0", np.ones(size), [-1, *[1] * (size - 2), 2 if size == 2 else 3][:size])
refused("0-dimensional", np.float32(1))
assert distrun.alltoall(np.arange(size)).tolist() == [distrun.rank()] * size
