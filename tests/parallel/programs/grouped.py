"""Grouped operations: lists of tensors of mixed dtypes and shapes, as one."""

from dataclasses import dataclass

import numpy as np
import reference
from hypothesis import strategies as st
from refusals import refuse

import distrun
from examples import SameEverywhere, Tensor, perform_each, same, tensors

FORMS = (
    "allreduce", "allreduce in place", "allreduce async", "allreduce async in place", "allgather", "allgather async",
    "reducescatter", "reducescatter async",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    tensors: tuple[Tensor, ...]
    op: object
    form: str
    named: bool


@st.composite
def cases(draw):
    form = draw(st.sampled_from(FORMS))
    min_dims = 0 if "allreduce" in form else 1
    members = tensors(min_dims, ("any", "special"), ["float32", "float32", "float64", "bfloat16", "int8"])
    group = tuple(draw(st.lists(members, min_size=1, max_size=6)))
    return Case(group, draw(st.sampled_from([distrun.Sum, distrun.Average])), form, draw(st.booleans()))


def start(case: Case, given: list[np.ndarray], name: str | None, process_set: distrun.ProcessSet):
    where = {"name": name, "process_set": process_set}
    if case.form == "allreduce":
        return distrun.grouped_allreduce(given, op=case.op, **where)
    if case.form == "allreduce in place":
        return distrun.grouped_allreduce_(given, op=case.op, **where)
    if case.form == "allreduce async":
        return distrun.grouped_allreduce_async(given, op=case.op, **where).wait()
    if case.form == "allreduce async in place":
        handle = distrun.grouped_allreduce_async_(given, op=case.op, **where)
        results = distrun.synchronize(handle)
        assert distrun.poll(handle)
        return results
    if case.form == "allgather":
        return distrun.grouped_allgather(given, **where)
    if case.form == "allgather async":
        return distrun.grouped_allgather_async(given, **where).wait()
    if case.form == "reducescatter":
        return distrun.grouped_reducescatter(given, op=case.op, **where)
    return distrun.grouped_reducescatter_async(given, op=case.op, **where).wait()


def perform(case: Case, name: str | None, process_set: distrun.ProcessSet) -> None:
    me, size = process_set.rank(), process_set.size()
    given = [tensor.on(me) for tensor in case.tensors]
    results = start(case, given, name, process_set)
    assert len(results) == len(given)
    for tensor, mine, result in zip(case.tensors, given, results, strict=True):
        parts = [tensor.plain(rank) for rank in range(size)]
        if "gather" in case.form:
            same(result, np.concatenate(parts))
            continue
        whole = reference.reduce(parts, case.op, process_set=process_set)
        if "scatter" in case.form:
            reference.check(result, np.array_split(whole, size)[me], case.op == distrun.Sum)
            continue
        assert (result is mine) == ("in place" in case.form)
        reference.check(result, whole, case.op == distrun.Sum)
        everywhere.add(result, process_set)


distrun.init()
everywhere = SameEverywhere()
reference.hosts()
perform_each(cases(), 60, perform)
everywhere.check()

refuse(distrun.UsageError, "a group needs at least one tensor", lambda: distrun.grouped_allreduce([]))
many = [np.full(100 + place, place + distrun.rank(), np.float32) for place in range(500)]
for place, result in enumerate(distrun.grouped_allreduce(many, op=distrun.Max, name="many")):
    assert result.tolist() == [place + distrun.size() - 1] * (100 + place)
