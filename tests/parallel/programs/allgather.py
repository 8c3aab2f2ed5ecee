"""Allgather against `numpy.concatenate`, with as many rows on each rank as it likes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

import distrun
from examples import SameEverywhere, Tensor, perform_each, same, tensors


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    rows: tuple[int, ...]
    form: str
    named: bool


@st.composite
def cases(draw):
    tensor = draw(tensors(min_dims=1, values=("any", "special")))
    extra = st.lists(st.sampled_from([0, -1, 1, 3, -tensor.shape[0]]), min_size=4, max_size=4)
    rows = tuple(max(0, tensor.shape[0] + more) for more in draw(extra))
    return Case(tensor, rows, draw(st.sampled_from(["now", "async"])), draw(st.booleans()))


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    me = process_set.rank()
    given = case.tensor.on(me, case.rows[me])
    if case.form == "now":
        result = distrun.allgather(given, name, process_set)
    else:
        result = distrun.allgather_async(given, name, process_set).wait()
    same(result, np.concatenate([case.tensor.plain(rank, case.rows[rank]) for rank in range(process_set.size())]))
    everywhere.add(result, process_set)


distrun.init()
everywhere = SameEverywhere()
perform_each(cases(), 150, perform)
everywhere.check()
assert distrun.allgather([distrun.rank()]).tolist() == list(range(distrun.size()))
