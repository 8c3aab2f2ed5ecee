"""Failures in process groups: errors tell who, what and where, and the groups go on."""

import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from expecting import raises
from layouts import finish
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

import distrun
from distrun import MismatchError, StallError


def ranks_that_disagree():
    with raises(MismatchError, "default_pg", "rank 0 asked for shapes [3] at failures.py", "rank 1", "[4]"):
        dist.all_reduce(torch.zeros(3 + RANK))
    with raises(MismatchError, "allreduce", "broadcast", "failures.py"):
        dist.all_reduce(torch.zeros(3)) if RANK == 0 else dist.broadcast(torch.zeros(3), 0)
    with raises(MismatchError, "float32", "float64"):
        dist.broadcast(torch.zeros(3, dtype=torch.float64 if RANK else torch.float32), 0)
    with raises(MismatchError, ", 2]", ", 3]"):
        dist.all_gather_into_tensor(torch.zeros(2 * (2 + RANK)), torch.zeros(2 + RANK))
    work = dist.all_reduce(torch.zeros(3 + RANK), async_op=True)
    with raises(RuntimeError, "shapes [3]", "shapes [4]"):  # C++ makes it of any error
        work.get_future().wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), MismatchError)
    with raises(MismatchError, "shapes [3]"):
        work.wait()


def parts_that_do_not_fit():
    """They are sent all the same: the rank that has no room for one says so."""
    sent = [torch.zeros(2 + RANK), torch.zeros(2 + RANK)]
    if RANK == 0:
        with raises(MismatchError, "rank 1 of the group has sent 3 elements", "room for 2"):
            dist.all_to_all([torch.zeros(2), torch.zeros(2)], sent)
    else:
        dist.all_to_all([torch.zeros(2), torch.zeros(3)], sent)


def operations_that_take_too_long():
    """They say who is missing, whether that is the rank that coordinates them or not, and fail on the late rank too."""
    for waiting, missing in ((0, 1), (1, 0)):
        slow, slow_too = [dist.new_group([0, 1], timeout=timedelta(seconds=1)) for _ in range(2)]
        other = dist.new_group([0, 1])  # in which the ranks meet at the end, however long one of them takes
        who = f"submitted by rank {waiting} (at failures.py", f"not by rank {missing} (process "
        done = f"{missing} is missing no more"
        tensor, future, late = [torch.full((3,), 1.0 + RANK) for _ in range(3)]
        if waiting == RANK:
            started = time.monotonic()
            with raises(StallError, "allreduce", "1 s", *who):
                dist.all_reduce(tensor, group=slow)
            with raises(RuntimeError, "allreduce", "1 s", *who):  # C++ makes it of any error
                work = dist.all_reduce(future, group=slow_too, async_op=True)
                work.get_future().wait()
            assert work.is_completed()
            assert not work.is_success()
            assert isinstance(work.exception(), StallError)
            work = dist.all_reduce(late, async_op=True)
            with raises(StallError, "allreduce", "0.2 s", *who):
                work.wait(timedelta(seconds=0.2))
            assert time.monotonic() - started > 2
            assert not work.is_completed()
            STORE.set(done, "yes")
            finish(work)  # what was not given up may come all the same
        else:
            STORE.wait([done])
            with raises(StallError, "allreduce", "1 s", *who):
                dist.all_reduce(tensor, group=slow)
            with raises(StallError, "allreduce", "1 s", *who):
                dist.all_reduce(future, group=slow_too)
            dist.all_reduce(late)
        assert tensor.tolist() == future.tolist() == [1.0 + RANK] * 3
        assert late.tolist() == [3.0] * 3
        for _ in range(2):  # nor does another try meet the other rank's first one, or its next operation
            with raises(StallError, "carries no more collectives", "allreduce (number 0)", "1 s", *who):
                dist.all_reduce(tensor, group=slow)
            with raises(StallError, "carries no more collectives"):
                dist.barrier(group=slow, async_op=True)
        dist.all_reduce(tensor, group=other)
        assert tensor.tolist() == [3.0] * 3
        for group in (slow, slow_too, other):
            dist.destroy_process_group(group)


def callbacks_that_wait():
    """They keep no other future waiting, and are told of a rank that does not come in time."""
    slow = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    other = dist.new_group([0, 1])  # whose operations may come before or after the main thread's
    first, second, third, late = [torch.ones(3) for _ in range(4)]
    if RANK == 0:
        asked = threading.Event()

        def ask(begun):
            future = dist.all_reduce(late, group=slow, async_op=True).get_future()
            asked.set()
            return future.wait()

        def wait(begun):
            return dist.all_reduce(late, group=other, async_op=True).wait()

        future = dist.all_reduce(first, async_op=True).get_future().then(ask)
        STORE.set("first has its callback", "yes")  # else `then` calls it in this thread if the operation is done
        assert asked.wait(60)
        waited = dist.all_reduce(second, async_op=True).get_future().then(wait)
        STORE.set("second has its callback", "yes")
        dist.all_reduce(third, async_op=True).get_future().wait()
        with raises(RuntimeError, "StallError", "within its timeout of 1 s", "not by rank 1"):
            future.wait()
        STORE.set("told", "yes")
        assert waited.wait() is True
    else:
        STORE.wait(["first has its callback"])
        dist.all_reduce(first)
        STORE.wait(["second has its callback"])
        dist.all_reduce(second)
        dist.all_reduce(third)
        STORE.wait(["told"])
        dist.all_reduce(late, group=other)
    assert third.tolist() == [2.0] * 3
    dist.barrier()
    for group in (slow, other):
        dist.destroy_process_group(group)


def waits_in_cpp():
    """They end with the group's timeout: the wait of a functional collective, and of DDP's reducer in a join."""
    slow, slow_too = [dist.new_group([0, 1]) for _ in range(2)]
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=slow)
    for group in (slow, slow_too):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    if RANK == 0:
        late = torch.ones(3)
        c10d._register_work(late, dist.all_reduce(late, group=slow_too, async_op=True))
        with raises(StallError, "allreduce", "within its timeout of 1 s", "not by rank 1"):
            torch.ops._c10d_functional.wait_tensor(late)
        with (
            raises(RuntimeError, "StallError", "within its timeout of 1 s", "not by rank 1"),
            model.join(divide_by_initial_world_size=False),
        ):
            model(torch.ones(1, 2)).sum().backward()
        STORE.set("waited", "yes")
    else:
        STORE.wait(["waited"])
    for group in (slow, slow_too):
        dist.destroy_process_group(group)


def barriers_that_tell_who_is_missing():
    if RANK == 1:
        STORE.wait(["barrier over"])
    with raises(StallError, "monitored_barrier", "rank 1", "0.5 s"):
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))
    STORE.set("barrier over", "yes")
    dist.monitored_barrier()


def operations_of_all_ranks_that_take_too_long():
    """Even those that a rank has offered the other one."""
    for late in (0, 1):
        dist.destroy_process_group()
        dist.init_process_group("distrun")
        store, tensor = dist.distributed_c10d._get_default_store(), torch.ones(3)
        for _ in range(3):
            dist.all_reduce(tensor)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
        if late == RANK:
            store.wait([f"{late} is late"], timedelta(seconds=60))
        with raises(StallError, "allreduce (number 3)", "its timeout of 1 s", f"not by rank {late}"):
            dist.all_reduce(tensor)
        store.set(f"{late} was told" if late == RANK else f"{late} is late", "yes")
        store.wait([f"{late} was told"], timedelta(seconds=60))
        assert tensor.tolist() == [8.0] * 3


def groups_of_a_world_that_was_there_before():
    dist.destroy_process_group()
    assert not distrun.is_initialized()
    distrun.init()
    for _ in range(2):
        dist.init_process_group("distrun")
        dist.monitored_barrier()
        if RANK == 0:  # which is nothing to the group after this one
            with raises(StallError, "rank 1", "0.2 s"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.2))
        finish(dist.barrier(async_op=True))
        dist.destroy_process_group()
        assert distrun.is_initialized()
    assert distrun.allreduce(torch.ones(1).numpy(), op=distrun.Sum)[0] == 2
    distrun.shutdown()


dist.init_process_group("distrun")
RANK = dist.get_rank()
STORE = dist.distributed_c10d._get_default_store()
for check in (
    ranks_that_disagree,
    parts_that_do_not_fit,
    operations_that_take_too_long,
    callbacks_that_wait,
    waits_in_cpp,
    barriers_that_tell_who_is_missing,
    operations_of_all_ranks_that_take_too_long,
    groups_of_a_world_that_was_there_before,
):
    print(check.__name__, file=sys.stderr)
    check()
