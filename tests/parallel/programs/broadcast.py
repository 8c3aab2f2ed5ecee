"""Broadcast: everybody ends with the root's values."""

# Functions made in a loop are called before it goes on.
# ruff: noqa: B023

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from refusals import refuse

import distrun
from examples import Tensor, perform_each, same, tensors


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    root: int
    form: str
    named: bool


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    given = case.tensor.on(process_set.rank())
    position = case.root % process_set.size()
    root = process_set.ranks[position]
    before = given.copy()
    if case.form == "new":
        result = distrun.broadcast(given, root, name, process_set)
    elif case.form == "in place":
        result = distrun.broadcast_(given, root, name, process_set)
    elif case.form == "async":
        result = distrun.broadcast_async(given, root, name, process_set).wait()
    else:
        result = distrun.broadcast_async_(given, root, name, process_set).wait()
    same(result, case.tensor.plain(position))
    if "in place" in case.form:
        assert result is given
    else:
        assert given.tobytes() == before.tobytes(), "the input has changed"
        assert not np.shares_memory(result, given)


distrun.init()
cases = st.builds(
    Case,
    tensors(values=("any", "special")),
    st.integers(0, 3),
    st.sampled_from(["new", "in place", "async", "async in place"]),
    st.booleans(),
)
perform_each(cases, 150, perform)
for root in (-1, distrun.size(), 0.5, None):
    refuse(distrun.UsageError, f"root_rank={root!r} is not a rank", lambda: distrun.broadcast(np.ones(2), root))
