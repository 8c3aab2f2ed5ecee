"""Process sets: overlapping ones, in any order, on every collective, against numpy; and everything that is refused."""

import random
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from operations import Results, cases, start
from reference import hosts
from refusals import refuse

import distrun
from distrun.runtime.process_sets.process_sets import get_process_set_ids_and_ranks
from examples import collect

distrun.init()
rank, size = distrun.rank(), distrun.size()
hosts()
KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


def everything(sets):
    """Every rank submits what is its own in an order of its own, and waits in another."""
    everywhere = Results()
    drawn = collect(st.tuples(st.integers(0, 100), cases(KINDS) | cases(("allreduce",), is_group=True)), 120)
    for first in range(0, len(drawn), 12):
        mine = []
        for number, (where, case) in enumerate(drawn[first : first + 12]):
            process_set = sets[where % len(sets)]
            if process_set.included():
                mine.append((case, process_set, first + number))
        order = random.Random(f"{rank} {first}")
        order.shuffle(mine)
        waits = [
            (start(asynchronous(case), f"case.{number}", among), case, among, number) for case, among, number in mine
        ]
        order.shuffle(waits)
        results = {}
        for finish, case, among, number in waits:
            try:
                results[number] = case, finish(), among
            except AssertionError as error:
                raise AssertionError(f"{case} among {among.ranks}: {error}") from error
        for number in sorted(results):
            everywhere.add(*results[number])
    everywhere.check()


def asynchronous(case):
    """Return a case whose call returns a handle."""
    return replace(case, form=case.form if "async" in case.form else {"new": "async"}.get(case.form, "async in place"))


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
