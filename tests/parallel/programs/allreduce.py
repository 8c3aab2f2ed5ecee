"""Allreduce against numpy: every dtype, operator, scale, shape, layout and form of the call."""

from dataclasses import dataclass

import numpy as np
import reference
from hypothesis import strategies as st

import distrun
from examples import SameEverywhere, Tensor, dtype_of, perform_each, tensors

FORMS = ("new", "in place", "async", "async in place")
OPS = (distrun.Average, distrun.Sum, distrun.Min, distrun.Max, distrun.Product)


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
    op = draw(st.sampled_from(OPS))
    scaled = draw(st.booleans())
    tensor = draw(tensors(values=("small",) if scaled else ("any", "special")))
    if tensor.dtype.startswith(("complex", "clong")) and op in (distrun.Min, distrun.Max):
        op = distrun.Sum
    factors = st.sampled_from([1.0, 0.5, 2.0] if dtype_of(tensor.dtype).kind in "iu" else [1.0, 0.5, -1.5, 1 / 3])
    prescale, postscale = draw(st.tuples(factors, factors)) if scaled else (1.0, 1.0)
    return Case(tensor, op, prescale, postscale, draw(st.sampled_from(FORMS)), draw(st.booleans()))


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    given = case.tensor.on(process_set.rank())
    before = given.copy()
    options = {"op": case.op, "prescale_factor": case.prescale, "postscale_factor": case.postscale}
    options |= {"name": name, "process_set": process_set}
    if case.form == "new":
        result = distrun.allreduce(given, **options)
    elif case.form == "in place":
        result = distrun.allreduce_(given, **options)
    elif case.form == "async":
        result = distrun.synchronize(distrun.allreduce_async(given, **options))
    else:
        handle = distrun.allreduce_async_(given, **options)
        result = handle.wait()
        assert handle.poll()
    if "in place" in case.form:
        assert result is given
    else:
        assert not np.shares_memory(result, given)
        assert given.tobytes() == before.tobytes(), "the input has changed"
    expected = reference.reduce(
        [case.tensor.plain(rank) for rank in range(process_set.size())],
        *(case.op, case.prescale, case.postscale, process_set),
    )
    rounds = case.op == distrun.Average or case.prescale != 1.0 or case.postscale != 1.0
    # numpy multiplies complex numbers with or without fused instructions, as the arrays happen to lie.
    rounds |= case.op == distrun.Product and result.dtype.kind == "c"
    reference.check(result, expected, exact=not rounds)
    same.add(result, process_set)


distrun.init()
same = SameEverywhere()
reference.hosts()
perform_each(cases(), 180, perform)
same.check()

# What numpy takes, we take.
assert distrun.allreduce(3, op=distrun.Sum) == 3 * distrun.size()
assert distrun.allreduce([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]
assert distrun.allreduce(np.float32(2)).dtype == np.float32
readonly = np.ones(5)
readonly.flags.writeable = False
assert distrun.allreduce(readonly, op=distrun.Sum).tolist() == [distrun.size()] * 5
assert distrun.allreduce(np.broadcast_to(np.float64(1), (4, 3)), op=distrun.Sum).tolist() == [[distrun.size()] * 3] * 4
assert distrun.allreduce(np.ones(3), prescale_factor=np.float32(0.5)).tolist() == [0.5] * 3
