"""Adasum against the published formula, written down in plain numpy."""

import os
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from reference import hosts
from refusals import refuse

import distrun
from examples import SameEverywhere, Tensor, collect, tensors


def formula(a, b):
    product, of_a, of_b = a @ b, a @ a, b @ b
    return (1 - product / (2 * of_a) if of_a else 1) * a + (1 - product / (2 * of_b) if of_b else 1) * b


def combined(vectors):
    if len(vectors) == 1:
        return vectors[0]
    pairs = [formula(*vectors[at : at + 2]) for at in range(0, len(vectors) - 1, 2)]
    return combined([*pairs, vectors[-1]] if len(vectors) % 2 else pairs)


def expected(arrays, prescale=1.0, postscale=1.0):
    flat = [array.astype(np.float64).reshape(-1) * prescale for array in arrays]
    if os.environ.get("DISTRUN_ADASUM") == "hierarchical":
        flat = [np.mean([flat[rank] for rank in ranks], axis=0) for ranks in hosts()]
    return combined(flat).reshape(arrays[0].shape) * postscale


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    form: str
    prescale: float
    postscale: float


@st.composite
def cases(draw):
    tensor = draw(tensors(dtypes=["float16", "bfloat16", "float32", "float64"]))
    scale = st.sampled_from([1.0, 1.0, 0.5, -3.0])
    return Case(tensor, draw(st.sampled_from(["now", "in place", "group"])), draw(scale), draw(scale))


def close(found, wanted):
    tolerance = {"float64": 1e-10, "float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}[found.dtype.name]
    assert np.allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=tolerance), (found, wanted)


def perform(case):
    options = {"op": distrun.Adasum, "prescale_factor": case.prescale, "postscale_factor": case.postscale}
    given, arrays = case.tensor.on(distrun.rank()), [case.tensor.plain(rank) for rank in range(distrun.size())]
    if case.form == "group":
        doubled = [given, given * given.dtype.type(2)]
        results = distrun.grouped_allreduce(doubled, **options)
        second = [array * array.dtype.type(2) for array in arrays]
        close(results[1], expected(second, case.prescale, case.postscale))
        result = results[0]
    elif case.form == "in place":
        result = distrun.allreduce_(given, **options)
    else:
        result = distrun.allreduce(given, **options)
    close(result, expected(arrays, case.prescale, case.postscale))
    everywhere.add(result)


distrun.init()
hosts()
everywhere = SameEverywhere()
for case in collect(cases(), 60):
    try:
        perform(case)
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
everywhere.check()

same = np.arange(1.0, 5.0)
close(distrun.allreduce(same, op=distrun.Adasum), same)  # those that are equal are averaged
if distrun.size() == 2 and not os.environ.get("DISTRUN_ADASUM"):
    unit = np.eye(2)[distrun.rank()]
    close(distrun.allreduce(unit, op=distrun.Adasum), np.ones(2))  # those that are orthogonal are added
zeros = np.zeros(3) if distrun.rank() else np.arange(3.0)
if not os.environ.get("DISTRUN_ADASUM"):
    close(distrun.allreduce(zeros, op=distrun.Adasum), np.arange(3.0))
refuse(distrun.UsageError, "int32 is no real", lambda: distrun.allreduce(np.ones(2, np.int32), op=distrun.Adasum))
refuse(distrun.UsageError, "not offered", lambda: distrun.reducescatter(np.ones(2), op=distrun.Adasum))
some = distrun.add_process_set([0]) if distrun.size() > 1 else distrun.global_process_set
if some.included():
    close(distrun.allreduce(same, op=distrun.Adasum, process_set=some), same)
