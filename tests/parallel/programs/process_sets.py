"""Process sets: overlapping ones, in any order, on every collective, against numpy; and everything that is refused."""

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from refusals import refuse

import distrun
from distrun.runtime.process_sets.process_sets import get_process_set_ids_and_ranks
from examples import SameEverywhere, Tensor, collect, tensors

OPS = {distrun.Sum: np.add, distrun.Min: np.minimum, distrun.Max: np.maximum, distrun.Product: np.multiply}
DTYPES = ["int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]

distrun.init()
rank, size = distrun.rank(), distrun.size()


@dataclass(frozen=True)
class Case:
    tensor: Tensor
    where: int
    kind: str
    op: object
    root: int


@st.composite
def cases(draw):
    return Case(
        draw(tensors(min_dims=1, values=("small",), dtypes=DTYPES)),
        draw(st.integers(0, 100)),
        draw(st.sampled_from(["allreduce", "grouped", "allgather", "broadcast", "alltoall", "reducescatter"])),
        draw(st.sampled_from(list(OPS))),
        draw(st.integers(0, 100)),
    )


def submit(case, process_set, name):
    given, root = case.tensor.on(rank), process_set.ranks[case.root % process_set.size()]
    if case.kind == "allreduce":
        return distrun.allreduce_async(given, name, case.op, process_set=process_set)
    if case.kind == "grouped":
        return distrun.grouped_allreduce_async([given, given[:1]], name, case.op, process_set=process_set)
    if case.kind == "allgather":
        return distrun.allgather_async(given, name, process_set)
    if case.kind == "broadcast":
        return distrun.broadcast_async(given, root, name, process_set)
    if case.kind == "alltoall":
        splits = [0] * process_set.size()
        splits[case.root % process_set.size()] = len(given)
        return distrun.alltoall_async(given, splits, name, process_set)
    return distrun.reducescatter_async(given, name, distrun.Sum, process_set=process_set)


def check(case, process_set, result):
    values = [case.tensor.plain(other) for other in process_set.ranks]
    place = process_set.rank()
    if case.kind in ("allreduce", "grouped"):
        total = combined(values, OPS[case.op])
        results = [result] if case.kind == "allreduce" else result
        for found, expected in zip(results, [total, total[:1]], strict=False):
            equal(found, expected)
    elif case.kind == "allgather":
        assert (result == np.concatenate(values)).all()
    elif case.kind == "broadcast":
        assert (result == values[case.root % len(values)]).all()
    elif case.kind == "alltoall":
        rows, counts = result
        is_target = case.root % len(values) == place
        assert counts.tolist() == [len(values[0]) if is_target else 0] * len(values)
        assert (rows == (np.concatenate(values) if is_target else values[0][:0])).all()
    else:
        total = combined(values, np.add)
        shares = [len(total) // len(values) + (other < len(total) % len(values)) for other in range(len(values))]
        equal(result, total[sum(shares[:place]) : sum(shares[: place + 1])])


def combined(values, ufunc):
    total = values[0] if values[0].dtype.kind in "iu" else values[0].astype(np.float64)
    for value in values[1:]:
        total = ufunc(total, value)
    return total


def equal(found, expected):
    """Up to rounding, which is that of the element type, several times."""
    if expected.dtype.kind in "iu":
        assert (found == expected).all(), (found, expected)
    else:
        tolerance = 0.05 if found.itemsize == 2 else 1e-5
        assert np.allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance), (found, expected)


def everything(sets):
    """Every rank submits what is its own in an order of its own, and waits in another."""
    everywhere = SameEverywhere()
    drawn = collect(cases(), 120)
    for start in range(0, len(drawn), 12):
        mine = []
        for number, case in enumerate(drawn[start : start + 12]):
            process_set = sets[case.where % len(sets)]
            if process_set.included():
                mine.append((case, process_set, f"case.{start + number}"))
        order = random.Random(f"{rank} {start}")
        order.shuffle(mine)
        handles = [(case, process_set, submit(case, process_set, name)) for case, process_set, name in mine]
        order.shuffle(handles)
        for case, process_set, handle in handles:
            try:
                check(case, process_set, handle.wait())
            except AssertionError as error:
                raise AssertionError(f"{case} among {process_set.ranks}: {error}") from error
    everywhere.check()


def see_membership(process_set):
    """Members have a place in the set and may use it; the others hear that they do not belong to it."""
    assert process_set.included() == (rank in process_set.ranks)
    if not process_set.included():
        refuse(distrun.UsageError, "does not belong to", lambda: distrun.barrier(process_set))
        refuse(distrun.UsageError, "does not belong to", process_set.rank)
        return
    assert process_set.rank() == process_set.ranks.index(rank)
    outside = next(other for other in range(size) if other not in process_set.ranks)
    refuse(distrun.UsageError, "is not a rank", lambda: distrun.broadcast(np.ones(1), outside, None, process_set))
    assert distrun.allgather_object(rank, process_set=process_set) == process_set.ranks


world = distrun.global_process_set
assert (world.process_set_id, world.ranks, world.size(), world.rank(), world.included()) == (
    *(0, list(range(size)), size, rank, True),
)
fresh = distrun.ProcessSet([size - 1, 0] if size > 1 else [0])
assert fresh.ranks == sorted({0, size - 1})
assert (fresh.process_set_id, fresh.size(), fresh.rank(), fresh.included()) == (None,) * 4
refuse(distrun.UsageError, "not registered", lambda: distrun.barrier(fresh))
refuse(distrun.UsageError, "is not a distrun.ProcessSet", lambda: distrun.allreduce(np.ones(1), process_set=[0]))
refuse(distrun.UsageError, "a process set of these ranks already", lambda: distrun.add_process_set(range(size)))
refuse(distrun.UsageError, f"the job has ranks 0 to {size - 1}", lambda: distrun.add_process_set([0, size]))
refuse(distrun.UsageError, "each of them once", lambda: distrun.ProcessSet([1, 1]))
refuse(distrun.UsageError, "give at least one rank", lambda: distrun.ProcessSet([]))
assert not distrun.remove_process_set(world)
assert not distrun.remove_process_set(fresh)

if size > 1:
    text = "add_process_set: the ranks disagree about ranks: rank"
    refuse(distrun.MismatchError, text, lambda: distrun.add_process_set([0] if rank else [size - 1]))

ranks_of = [[0], [size - 1], *([list(range(1, size)), list(range(0, size, 2)), [0, size - 1]] if size > 2 else [])]
unique = [list(ranks) for ranks in dict.fromkeys(map(tuple, ranks_of)) if len(ranks) < size]
sets = [world, *[distrun.add_process_set(ranks) for ranks in unique]]
assert [process_set.process_set_id for process_set in sets] == list(range(len(sets)))
assert get_process_set_ids_and_ranks() == dict(enumerate(process_set.ranks for process_set in sets))
refuse(distrun.UsageError, "a process set of these ranks already", lambda: distrun.add_process_set([0]))
for process_set in sets[1:]:
    see_membership(process_set)
everything(sets)

# What a mismatch in a set says, and that the set goes on.
last = sets[-1]
if last.included() and last.size() > 1:
    shape = 2 if rank == last.ranks[0] else 3
    text = f"of process set {last.process_set_id}: the ranks disagree about shapes"
    refuse(distrun.MismatchError, text, lambda: distrun.allreduce(np.ones(shape), "odd", process_set=last))
    assert distrun.allreduce(np.ones(1), "odd", distrun.Sum, process_set=last) == last.size()

# Sets that are gone can be added again, under other numbers; and so again after the next init.
if size > 1:
    assert distrun.remove_process_set(last)
    assert last.process_set_id is None
    refuse(distrun.UsageError, "not registered", lambda: distrun.barrier(last))
    assert distrun.add_process_set(last) is last
    assert last.process_set_id == len(sets)
    everything([world, last])
    distrun.shutdown()
    assert last.process_set_id is None
    distrun.init(process_sets=[last])
    assert last.process_set_id == 1
    everything([world, last])

    # A call of init that fails leaves nothing behind, and one that comes later registers what is not there yet.
    distrun.shutdown()
    first = distrun.ProcessSet([0])
    refuse(distrun.UsageError, "of these ranks already", lambda: distrun.init(process_sets=[last, first, [0]]))
    assert not distrun.is_initialized()
    assert first.process_set_id is last.process_set_id is None
    distrun.init(process_sets=[last])
    distrun.init(process_sets=[last, first])
    assert (last.process_set_id, first.process_set_id) == (1, 2)
    everything([world, last, first])
