"""Reducescatter: this rank's rows of the reduction; earlier ranks keep one more where the division leaves a rest."""

from dataclasses import dataclass

import numpy as np
import reference
from hypothesis import strategies as st
from refusals import refuse

import distrun
from examples import Tensor, perform_each, tensors


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    op: object
    prescale: float
    postscale: float
    form: str
    named: bool


@st.composite
def cases(draw):
    scaled = draw(st.booleans())
    tensor = draw(tensors(min_dims=1, values=("small",) if scaled else ("any", "special")))
    prescale, postscale = draw(st.tuples(*[st.sampled_from([1.0, 0.5, 2.0])] * 2)) if scaled else (1.0, 1.0)
    form, named = draw(st.sampled_from(["now", "async"])), draw(st.booleans())
    return Case(tensor, draw(st.sampled_from([distrun.Sum, distrun.Average])), prescale, postscale, form, named)


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    given = case.tensor.on(process_set.rank())
    before = given.copy()
    options = {"op": case.op, "prescale_factor": case.prescale, "postscale_factor": case.postscale}
    options |= {"name": name, "process_set": process_set}
    if case.form == "now":
        result = distrun.reducescatter(given, **options)
    else:
        result = distrun.reducescatter_async(given, **options).wait()
    assert given.tobytes() == before.tobytes(), "the input has changed"
    whole = reference.reduce(
        [case.tensor.plain(rank) for rank in range(process_set.size())],
        *(case.op, case.prescale, case.postscale, process_set),
    )
    exact = case.op == distrun.Sum and case.prescale == case.postscale == 1.0
    reference.check(result, np.array_split(whole, process_set.size())[process_set.rank()], exact)


distrun.init()
reference.hosts()
perform_each(cases(), 150, perform)
for op in (distrun.Min, distrun.Max, distrun.Product):
    text = "is not offered: use Sum or Average"
    refuse(distrun.UsageError, text, lambda: distrun.reducescatter(np.ones(4), op=op))  # noqa: B023
