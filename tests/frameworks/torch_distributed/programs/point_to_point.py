"""send, recv, isend and irecv of torch.distributed on our backend: every dtype, tags, any source, batches, threads."""

import re
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import distrun
from distrun.errors import CollectiveError, MismatchError, StallError, UsageError

dist.init_process_group("distrun", timeout=timedelta(seconds=200))
me, size = dist.get_rank(), dist.get_world_size()
following, before = (me + 1) % size, (me - 1) % size
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float8_e4m3fn),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]


def refused(error: type[Exception], words: str, call) -> None:
    with pytest.raises(error, match=re.escape(words)):
        call()


def test_dtypes_and_layouts() -> None:
    for dtype in DTYPES:
        for shape in ((), (0,), (5,), (3, 4), (300, 200)):
            given = (torch.arange(torch.Size(shape).numel()) % 7 + me).reshape(shape).to(dtype)
            work = dist.isend(given, following, tag=3)
            got = torch.zeros(shape, dtype=dtype)
            assert dist.recv(got, before, tag=3) == before
            work.wait()
            expected = (torch.arange(torch.Size(shape).numel()) % 7 + before).reshape(shape).to(dtype)
            assert torch.equal(
                got.view(torch.uint8) if shape else got.cfloat(),
                expected.view(torch.uint8) if shape else expected.cfloat(),
            )
    given = torch.arange(12.0).reshape(3, 4) + me
    work = dist.isend(given.T, following)
    got = torch.zeros(8, 6)[::2, ::2]
    dist.recv(got, before)
    work.wait()
    assert torch.equal(got, (torch.arange(12.0).reshape(3, 4) + before).T)
    turned = torch.tensor([1 + 2j, 3 - 4j])
    work = dist.isend(turned.conj().imag, following)  # a view that is negated when it is read
    got = torch.zeros(2)
    dist.recv(got, before)
    work.wait()
    assert got.tolist() == [-2, 4]


def test_large_ones_both_ways() -> None:
    mine, got = torch.full((3_000_000,), float(me)), torch.zeros(3_000_000)
    works = [dist.isend(mine, following), dist.irecv(got, before)]
    for work in works:
        work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    assert (got == before).all()
    assert works[1].source_rank() == works[1]._source_rank() == before
    refused(UsageError, "no source rank", works[0].source_rank)


def test_batches_and_futures() -> None:
    got = [torch.zeros(1000), torch.zeros(100_000)]
    operations = [dist.P2POp(dist.isend, torch.full_like(each, float(me)), following) for each in got]
    operations += [dist.P2POp(dist.irecv, each, before) for each in got]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert all((each == before).all() for each in got)
    work = dist.irecv(got[0], before, tag=9)
    future = work.get_future().then(lambda done: done.value()[0].sum())
    dist.send(torch.full((1000,), 2.0), following, tag=9)
    assert future.wait() == 2000


def test_any_source() -> None:
    if me == 0:
        seen = set()
        for _ in range(1, size):
            got = torch.zeros(10, dtype=torch.int64)
            source = dist.recv(got, tag=1)
            assert (got == source).all()
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((10,), me), 0, tag=1)


def test_objects() -> None:
    if me == 0:
        dist.send_object_list(["text", {"a": torch.arange(3)}, None], 1)
    elif me == 1:
        got = [None] * 3
        assert dist.recv_object_list(got, 0) == 0
        assert got[0] == "text"
        assert got[1]["a"].tolist() == [0, 1, 2]


def test_a_timeout_counts_from_the_wait() -> None:
    """Receives may be posted long before, as the program waits for other things."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    got = torch.zeros(3)
    early = dist.irecv(got, before, tag=1, group=group)
    with pytest.raises(StallError, match=r"gave up after [1-9][\d.]* s"):
        dist.irecv(torch.zeros(3), before, tag=2, group=group).wait()
    begun = dist.isend(torch.zeros(1), before)  # which sends only now
    dist.recv(torch.zeros(1), following)
    sent = dist.isend(torch.ones(3), following, tag=1, group=group)
    for work in (begun, sent):
        work.wait()
    dist.barrier()  # all have sent: the wait that follows ends at once
    early.wait()
    assert got.tolist() == [1.0] * 3
    dist.barrier()
    dist.destroy_process_group(group)


def test_groups() -> None:
    """A group's messages are its own, and its ranks are numbered as the group has them."""
    turned = dist.new_group([1, 0], use_local_synchronization=False)
    if me > 1:
        return
    other = 1 - me
    dist.send(torch.ones(5), other)
    dist.send(torch.full((5,), 7.0), other, group=turned)
    got = torch.zeros(5)
    assert dist.recv(got, group=turned) == other
    assert (got == 7).all()
    assert dist.recv(got) == other
    assert (got == 1).all()
    dist.send(torch.full((5,), 8.0), group=turned, group_dst=dist.get_group_rank(turned, other))
    dist.recv(got, other, turned)
    assert (got == 8).all()


def test_groups_of_one_name_after_each_other() -> None:
    """A later group of the same name gets neither messages nor receives that an earlier one has left behind."""
    if me > 1:
        return
    other, left, names = 1 - me, [], set()
    for number, count in enumerate((5, 60_000, 5)):
        group = dist.new_group([0, 1], use_local_synchronization=True)
        names.add(group.group_name)
        for tag in (0, 1) if number else ():
            work = dist.isend(torch.full((count,), 2.0), other, group=group, tag=tag)
            got = torch.zeros(count)
            dist.recv(got, other, group=group, tag=tag)
            work.wait()
            assert (got == 2).all()
        left += [(dist.isend(torch.ones(each), other, group=group), torch.ones(each)) for each in (5, 60_000)]
        waiting = torch.zeros(5)
        left.append((dist.irecv(waiting, other, tag=1, group=group), waiting))
        dist.barrier(group)
        dist.destroy_process_group(group)
        refused(CollectiveError, f"rank {me} (process", left[-1][0].wait)
    assert len(names) == 1
    refused(CollectiveError, "has left the group", left[1][0].wait)
    assert not any(tensor.any() for work, tensor in left[2::3])


def test_a_pipeline_of_threads() -> None:
    """Activations go forward and gradients back, each in a thread of its own, some micro-batches ahead."""
    count = 30

    def forward() -> None:
        for number in range(count):
            tensor = torch.full((20_000,), float(number))
            if me > 0:
                dist.recv(tensor, me - 1, tag=11)
            assert (tensor == number + me).all()
            if me + 1 < size:
                dist.send(tensor + 1, me + 1, tag=11)

    def backward() -> None:
        for number in range(count):
            tensor = torch.full((20_000,), float(number))
            if me + 1 < size:
                dist.recv(tensor, me + 1, tag=12)
            assert (tensor == number + size - 1 - me).all()
            if me > 0:
                dist.send(tensor + 1, me - 1, tag=12)

    failures: list[BaseException] = []

    def guarded(part) -> None:
        try:
            part()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(part,)) for part in (forward, backward)]
    for thread in threads:
        thread.start()
    for _ in range(10):  # the threads and the collectives do not mind each other
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert (total == size).all()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_refusals() -> None:
    group = dist.group.WORLD
    refused(UsageError, "cannot send to itself", lambda: group.send([torch.ones(1)], me, 0))
    refused(UsageError, f"it has ranks 0 to {size - 1}", lambda: group.recv([torch.ones(1)], size, 0))
    refused(UsageError, "one tensor, not 2", lambda: group.send([torch.ones(1)] * 2, following, 0))
    refused(UsageError, "to_dense", lambda: group.send([torch.ones(1).to_sparse()], following, 0))
    for tag in (1 << 63, -(1 << 63) - 1):
        refused(UsageError, f"tag {tag} does not fit", lambda tag=tag: group.send([torch.ones(1)], following, tag))
        refused(UsageError, "-9223372036854775808 to", lambda tag=tag: group.recv([torch.ones(1)], before, tag))
    refused(UsageError, "share their memory", lambda: dist.irecv(torch.zeros(1).expand(4), before))
    refused(UsageError, "'default_pg'", lambda: group.recv([torch.ones(1)], size, 0))
    late = dist.irecv(torch.zeros(3), before, tag=77)
    refused(
        StallError, f"12 bytes of float32 with tag 77 from rank {before}", lambda: late.wait(timedelta(seconds=0.2))
    )
    assert not late.is_success()
    assert isinstance(late.exception(), StallError)
    dist.barrier()
    for count, dtype in ((5, torch.float32), (3, torch.int32), (60_000, torch.float32)):
        sent = dist.isend(torch.ones(count, dtype=dtype), following, tag=77)  # not for the one that was given up
        if me % 2:
            refused(MismatchError, "number of elements and dtype", lambda: dist.recv(torch.zeros(3), before, tag=77))
        else:
            got = torch.zeros(count, dtype=dtype)
            dist.recv(got, before, tag=77)
            assert got.all()
        if count > 20_000 and following % 2:
            refused(MismatchError, f"has sent 240000 bytes of float32 with tag 77, and rank {following}", sent.wait)
        else:
            sent.wait()


def default_groups_after_each_other_in_one_world() -> None:
    """They are new ones, though the world was there before and stays."""
    distrun.init()
    for value in (1.0, 2.0):
        dist.init_process_group("distrun", init_method="distrun://")
        work = dist.isend(torch.tensor([value]), following)
        if value == 2:
            got = torch.zeros(1)
            dist.recv(got, before)
            assert got == value
        work.wait()
        dist.barrier()
        dist.destroy_process_group()
    distrun.shutdown()


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        dist.barrier()
dist.destroy_process_group()
default_groups_after_each_other_in_one_world()
print("done")
