"""Methods of process groups and operators of torch, called directly, on gloo and on distrun."""

from __future__ import annotations

import warnings
from datetime import timedelta

import torch
from comparing import RANK, SIZE, compare_all
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

warnings.simplefilter("ignore")
Op = dist.ReduceOp


def own(seed=0, size=3):
    return torch.arange(float(size)) + 10 * RANK + 100 * seed


def zeros(count=SIZE, size=3):
    return [torch.zeros(size) for _ in range(count)]


def options(kind, **attributes):
    made = kind()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def tensors(nested):
    """Yield the tensors in lists in lists."""
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for each in nested:
            yield from tensors(each)


def refusal(call):
    """Return whether a call raises an error of one of the kinds that torch's backends raise for arguments."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError):
        return True
    return False


def refused_arguments(call):
    """Return whether a call is refused for its arguments; of backend "distrun" by an error of all these kinds."""
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        kinds = {kind for kind in (RuntimeError, ValueError, TypeError) if isinstance(error, kind)}
        return len(kinds) == 3 or dist.get_backend() != "distrun"
    return False


def overloads():
    """Each convenience overload of `ProcessGroup`."""
    group, minute = dist.group.WORLD, timedelta(seconds=60)
    results = []

    def called(name, *args, **kwargs):
        work = getattr(group, name)(*args, **kwargs)
        work.wait()
        assert work.is_completed() or dist.get_backend() == "gloo"
        if name != "reduce" or RANK == 0:
            results.append(list(tensors((args, list(kwargs.values())))))

    for args in ((own(),), (own(), Op.MAX), ([own()], Op.SUM), ([own()],), (own(), Op.PRODUCT, minute)):
        called("allreduce", *args)
    called("allreduce", torch.ones(2, 2) * (RANK + 1))
    called("allreduce", tensor=own(), op=Op.MIN)
    called("allreduce", tensors=[own()], opts=c10d.AllreduceOptions())
    called("broadcast", own(), 1)
    called("broadcast", own(), root=1)
    called("broadcast", [own()], options(c10d.BroadcastOptions, rootRank=1))
    called("reduce", own(), 0, Op.SUM)
    called("allgather", zeros(), own())
    called("allgather", zeros(), input_tensor=own(), timeout=minute)
    called("gather", zeros() if RANK == 0 else [], own(), 0)
    called("scatter", torch.zeros(3), [own(), own(1)] if RANK == 0 else [], 0)
    called("reduce_scatter", torch.zeros(3), [own(), own(1)])
    called("reduce_scatter", torch.zeros(3), [own(), own(1)], Op.SUM)
    called("alltoall_base", torch.zeros(4), own(size=4), [], [])
    called("barrier")
    called("barrier", timeout=minute)
    return results


def several_tensors():
    """Several tensors of a rank: an allreduce adds them up, an allgather gathers each."""
    group = dist.group.WORLD
    summed, largest, given = [own(), own(1)], [own(), own(1)], [own(), own(1)]
    group.allreduce(summed).wait()
    group.allreduce(largest, Op.MAX).wait()
    group.broadcast(given, options(c10d.BroadcastOptions, rootRank=1, rootTensor=1)).wait()
    gathered = [zeros(2 * SIZE), zeros(2 * SIZE)]
    group.allgather(gathered, [own(), own(1)]).wait()
    refused = [
        refusal(lambda: group.allreduce([own(), own().double()])),
        refusal(lambda: group.allreduce([own(), own(size=2)])),
        refusal(lambda: group.allreduce([])),
        refusal(lambda: group.reduce([own(), own(1)], options(c10d.ReduceOptions, rootRank=0))),
        refusal(lambda: group.reduce_scatter(zeros(2), [zeros(), zeros()])),
        refusal(lambda: group.gather([zeros(), zeros()], [own(), own(1)], options(c10d.GatherOptions, rootRank=0))),
    ]
    return summed, largest, given, gathered, torch.tensor(refused)


def wrong_arguments():
    """A tensor is no list of its rows, and a root must be a rank of the group: no backend takes these."""
    group, square = dist.group.WORLD, torch.zeros(SIZE, 3)
    calls = [
        lambda: group.alltoall(square, square.clone()),
        lambda: group.allgather(square, own()),
        lambda: group.allgather([square], [own()]),
        lambda: group.allreduce_coalesced(square),
        lambda: group.gather(square, own(), 0),
        lambda: group.reduce_scatter(own(), square),
        lambda: group.send(square[:1], 1 - RANK, 0),
        lambda: group.allreduce(3),
        lambda: group.broadcast(own()),
        lambda: group.broadcast(own(), 7),
        lambda: dist.broadcast(own(), group_src=SIZE),
        lambda: dist.reduce(own(), group_dst=-1),
    ]
    return torch.tensor([refused_arguments(call) for call in calls])


def operators():
    """torch's operators. Some of C++ calls a group by them."""
    group, functional, raw = dist.group.WORLD, torch.ops._c10d_functional, torch.ops.c10d
    boxed, name = group.boxed(), group.group_name
    results = []

    def waited(tensor):
        results.append(functional.wait_tensor(tensor))

    waited(functional.all_gather_into_tensor_out(own(), SIZE, name, out=torch.empty(3 * SIZE)))
    waited(functional.reduce_scatter_tensor_out(own(size=SIZE), "sum", SIZE, name, out=torch.empty(1)))
    around = [(RANK + 1) % SIZE, (RANK - 1) % SIZE]
    sent = functional.batch_p2p_ops(["isend", "irecv"], around, [0, 0], [own(), torch.empty(3)], name)
    results.append([functional.wait_tensor(each) for each in sent][1])
    works = []

    def called(name, *args):
        got = getattr(raw, name)(*args)
        result, work = got if isinstance(got, tuple) else (None, got)
        dist.Work.unbox(work).wait()
        works.append(work)
        results.append(list(tensors((result, args))))

    called("_allgather_base_", torch.zeros(3 * SIZE), own(), boxed, True, 60_000)
    called("allgather_", [zeros()], [own()], boxed)
    called("broadcast_", [own()], boxed, 1, 0)
    called("gather_", [zeros()] if RANK == 0 else [], [own()], boxed, 0)
    called("scatter_", [torch.zeros(3)], [[own(), own(1)]] if RANK == 0 else [], boxed, 0)
    called("alltoall_", zeros(), [own(), own(1)], boxed)
    called("alltoall_base_", torch.zeros(2), own(size=2), boxed, [], [])
    called("barrier", torch.zeros(1), boxed, [])
    if RANK == 0:
        called("send", [own()], boxed, 1, 5)
        called("recv_any_source_", [torch.zeros(3)], boxed, 6)
    elif RANK == 1:
        called("recv_", [torch.zeros(3)], boxed, 0, 5)
        called("send", [own()], boxed, 0, 6)
    raw.monitored_barrier_(torch.zeros(1), boxed, [], 60_000, True)
    return results


def futures():
    """Hold the results of futures against each other."""

    def held(work):
        return work.get_future().wait()

    return [
        held(dist.all_reduce(own(), async_op=True)),
        held(dist.broadcast(own(), 0, async_op=True)),
        held(dist.all_gather(zeros(), own(), async_op=True)),
        held(dist.gather(own(), zeros() if RANK == 0 else None, 0, async_op=True)),
        held(dist.scatter(torch.zeros(3), [own(), own(1)] if RANK == 0 else None, 0, async_op=True)),
        held(dist.all_to_all_single(torch.zeros(2), own(size=2), async_op=True)),
    ]


def works_that_cpp_keeps():
    """A work that Python has forgotten, and C++ has not."""
    if dist.get_backend() == "distrun":
        wrong = own(size=3 + RANK)
        c10d._register_work(wrong, dist.all_reduce(wrong, async_op=True))
        assert refusal(lambda: torch.ops._c10d_functional.wait_tensor(wrong))  # its error is raised, not lost
    total = own()
    c10d._register_work(total, dist.all_reduce(total, async_op=True))
    return torch.ops._c10d_functional.wait_tensor(total)


def groups():
    """Numbers of operations, timeouts, and splitting, in which gloo hangs now and then where the store is a file."""
    group = dist.group.WORLD
    before = group._get_sequence_number_for_group()
    dist.all_reduce(own())
    dist.barrier()
    after = group._get_sequence_number_for_group()
    distributed_c10d._set_pg_timeout(timedelta(seconds=50), group)
    if dist.get_backend() == "distrun":
        assert group._timeout == 50
        assert all(refusal(lambda wrong=wrong: group.split_group(wrong)) for wrong in ([0, SIZE], [RANK, RANK], []))
        turned, part = group.split_group([1, 0], timedelta(seconds=60)), group.split_group([0], group_name="part")
        given = own()
        turned.broadcast(given, 0).wait()
        assert (given[0].item(), turned.rank()) == (10.0, 1 - RANK)
        assert (part is None) == (RANK > 0)
    return after - before


def profiled():
    """Compare the names that torch's profiler shows, with the name of the backend left out."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(own())
        dist.barrier()
        dist.all_gather(zeros(), own())
        dist.broadcast(own(), 0)
        net(torch.ones(2, 4)).sum().backward()
    names = {event.key for event in profile.key_averages()}
    shown = {
        name.replace(dist.get_backend(), "backend") for name in names if "c10d::" in name or dist.get_backend() in name
    }
    print(sorted(shown)) if RANK == 0 else None
    return torch.tensor([sum(map(ord, name)) for name in sorted(shown)])


def sharded_tensors():
    """`ShardedTensor.gather` makes a tensor on a device that the backend says it has."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(SIZE)])
    whole = torch.empty(2 * SIZE, 2) if RANK == 0 else None
    sharded_tensor.full(spec, (2 * SIZE, 2), 3.0).gather(0, whole)
    return whole if RANK == 0 else 0


def beside():
    """Groups of our backend beside a default group, of either."""
    whole = dist.new_group(list(reversed(range(SIZE))), backend="distrun")
    results = [own(), own(1)]
    dist.all_reduce(results[0], group=whole)
    part = dist.new_group([0, 1], backend="distrun")
    if RANK < 2:
        dist.broadcast(results[1], 1, group=part)
    dist.barrier(whole)
    return results


VARIANTS = {
    "overloads": overloads,
    "several tensors": several_tensors,
    "wrong arguments": wrong_arguments,
    "operators": operators,
    "futures": futures,
    "works that C++ keeps": works_that_cpp_keeps,
    "groups": groups,
    "profiled": profiled,
    "sharded tensors": sharded_tensors,
    "beside": beside,
}
compare_all(VARIANTS, lambda name: True)
