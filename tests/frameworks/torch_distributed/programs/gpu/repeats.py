"""Collectives of tensors on GPUs that repeat, while tensors change places, shapes and types; to be run by
on_simulated_gpus.py."""

import random
import time
import weakref

import simulator
import torch
import torch.distributed as dist
from layouts import finish

from distrun.runtime.world import world
from distrun.torch import cuda

dist.init_process_group("distrun", init_method="distrun://")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUP = dist.group.WORLD
KEPT = GROUP._repeated._kept
current = 0
cuda.TorchArena.current_stream = lambda arena: current


def driver():
    return world.engine().gpu().driver


class Tensors:
    """The tensors of some operations of one kind, whose places, shapes and types change from time to time."""

    def __init__(self, chance, kind):
        self._chance, self._kind, self._step = chance, kind, 0
        self.change()

    def change(self):
        count = self._chance.randint(1, 3) if self._kind.endswith("coalesced") else 1
        shapes = [self._chance.choice([(4,), (2, 2), (1,), (8, 3)]) for _ in range(count)]
        dtype = self._chance.choice([torch.float32, torch.float32, torch.bfloat16, torch.int32])
        is_inside = self._chance.random() < 0.3  # as FSDP places them
        self.wholes = [torch.empty((SIZE, *shape), dtype=dtype) for shape in shapes]
        self.parts = [whole[RANK] if is_inside else torch.empty_like(whole[0]) for whole in self.wholes]
        if self._chance.random() < 0.2:
            self.wholes = [torch.empty((*whole.shape, 2), dtype=dtype)[..., 0] for whole in self.wholes]
            self.parts = [torch.empty_like(whole[0]) for whole in self.wholes]
        if self._chance.random() < 0.2:  # an offset by one element: no part of its own
            memory = torch.empty(self.wholes[0].numel() + self.parts[0].numel() + 1, dtype=dtype)
            self.wholes[0] = memory[: self.wholes[0].numel()].view(self.wholes[0].shape)
            self.parts[0] = memory[1 : 1 + self.parts[0].numel()].view(self.parts[0].shape)

    def run(self):
        self._step += 1
        value = 1 + self._step % 7
        is_sum, way = self._chance.random() < 0.5 or not self.parts[0].is_floating_point(), self._step % 2 == 0
        op = dist.ReduceOp.SUM if is_sum else dist.ReduceOp.AVG
        total = sum(range(1, SIZE + 1)) / (1 if is_sum else SIZE)
        everybodys = torch.arange(1, SIZE + 1)
        if self._kind.startswith("reduce_scatter"):
            for whole in self.wholes:
                for rank in range(SIZE):
                    whole[rank] = value * (RANK + 1) * (rank + 1)
            results, expected = self.parts, [value * total * (RANK + 1)] * len(self.parts)
        else:
            for part in self.parts:
                part.fill_(value * (RANK + 1))
            results, expected = self.parts, [value * total] * len(self.parts)
        if self._kind == "all_reduce":
            work = dist.all_reduce(self.parts[0], op, async_op=way)
        elif self._kind == "broadcast":
            root = self._step % SIZE
            work, expected = dist.broadcast(self.parts[0], root, async_op=way), [value * (root + 1)]
        elif self._kind == "reduce_scatter_tensor":
            work = dist.reduce_scatter_tensor(self.parts[0], self.wholes[0], op, async_op=way)
        elif self._kind == "all_gather_into_tensor":
            work = dist.all_gather_into_tensor(self.wholes[0], self.parts[0], async_op=way)
        else:
            with dist._coalescing_manager(async_ops=way) as work:
                for part, whole in zip(self.parts, self.wholes, strict=True):
                    if self._kind == "all_reduce, coalesced":
                        dist.all_reduce(part, op)
                    elif self._kind == "reduce_scatter_tensor, coalesced":
                        dist.reduce_scatter_tensor(part, whole, op)
                    else:
                        dist.all_gather_into_tensor(whole, part)
        if isinstance(work, dist.Work):
            finish(work)
        elif way:
            work.wait()
        if self._kind.startswith("all_gather"):
            results, expected = [whole.movedim(0, -1) for whole in self.wholes], [value * everybodys] * len(self.parts)
        for result, each in zip(results, expected, strict=True):
            wanted = torch.as_tensor(each).to(result.dtype).expand_as(result)
            assert torch.equal(result, wanted), (self._kind, self._step, result, wanted)


KINDS = ("all_reduce", "broadcast", "reduce_scatter_tensor", "all_gather_into_tensor")
KINDS += ("all_reduce, coalesced", "reduce_scatter_tensor, coalesced", "all_gather_into_tensor, coalesced")


def what_comes_out_is_what_was_given():
    chance = random.Random(7)  # the same on all ranks
    situations = [Tensors(chance, kind) for kind in KINDS]
    for _ in range(250):
        tensors = chance.choice(situations)
        if chance.random() < 0.4:
            tensors.change()
        tensors.run()


def the_backend_keeps_its_calls_and_several_are_one_group():
    parts = [torch.ones(SIZE * 4) for _ in range(3)]
    wholes = [torch.empty(SIZE, SIZE * 4) for _ in range(3)]
    shards = [torch.empty(4) for _ in range(3)]

    def run():
        for name in ("allReduce", "allGather", "reduceScatter"):
            before = len(simulator.log())
            with dist._coalescing_manager():
                for part, whole, shard in zip(parts, wholes, shards, strict=True):
                    if name == "allReduce":
                        dist.all_reduce(part, dist.ReduceOp.MAX)
                    elif name == "allGather":
                        dist.all_gather_into_tensor(whole, part)
                    else:
                        dist.reduce_scatter_tensor(shard, part)
            calls = [call.name for call in simulator.log()[before:]]
            if SIZE == 1:  # they are copies
                continue
            found = calls[calls.index("groupStart") : calls.index("groupEnd")] if "groupStart" in calls else calls
            assert found.count(name) == (1 if name == "allReduce" else 3), calls  # small ones are packed together
            assert name == "allReduce" or calls.count("groupStart") == 1, calls

    run()
    before, plans = len(KEPT), [kept.outputs.plan for kept in KEPT.values()]
    run()
    assert len(KEPT) == before
    assert all(kept.outputs.plan is plan for kept, plan in zip(KEPT.values(), plans, strict=True))


def the_stream_waits_and_not_the_host():
    global current
    streams = [driver().new_stream() for _ in range(2)]
    own, other = [stream.ptr for stream in streams]
    tensors, copies, alive = [torch.empty(64) for _ in range(8)], [torch.empty(64) for _ in range(8)], []
    for step in range(2):
        before, works = len(simulator.log()), []
        current = own
        for index, tensor in enumerate(tensors):
            alive.append(torch.full((64,), float(RANK + index + step)))
            with driver().use:
                driver().copy(tensor.data_ptr(), alive[-1].data_ptr(), tensor.nbytes, own)
            works.append(dist.all_reduce(tensor, async_op=True))
        for index, (work, tensor, copy) in enumerate(zip(works, tensors, copies, strict=True)):
            current = own if index % 2 else other
            assert work.wait()
            with driver().use:
                driver().copy(copy.data_ptr(), tensor.data_ptr(), copy.nbytes, current)
        blocking = {"eventSynchronize", "streamSynchronize", "deviceSynchronize"}
        assert not blocking & {call.name for call in simulator.log()[before:]}
        for stream in (own, other):
            driver().synchronize(driver().record(stream))
        for index, copy in enumerate(copies):
            assert torch.equal(copy, torch.full((64,), SIZE * (index + step) + SIZE * (SIZE - 1) / 2)), (index, copy)
    current = 0
    assert not simulator.violations()


def memory_is_kept_until_the_device_is_done():
    global current
    engine = world.engine()
    if SIZE == 1:  # in the order of the stream
        return
    dist.barrier()
    monitor, gpu = engine._gpu_monitor, engine.gpu()
    monitor._next_check = float("inf")  # nothing looks meanwhile what is done
    stream = driver().new_stream()
    current = stream.ptr
    part, whole = torch.ones(4), torch.empty(SIZE, 4)
    work = dist.all_gather_into_tensor(whole, part, async_op=True)
    gone = [weakref.ref(part), weakref.ref(whole)]
    while not all(handle.done for handle in work._handles):
        engine.ensure_progress()
        time.sleep(0.001)
    del part, whole, work
    assert all(each() is not None for each in gone)
    while gpu._in_flight.operations:
        gpu.check(time.monotonic())
        time.sleep(0.001)
    monitor._next_check = 0.0
    current = 0
    dist.barrier()
    assert all(each() is None for each in gone)


def futures_hold_the_results():
    own, seen = torch.full((4,), RANK + 1.0), []
    work = dist.all_reduce(own, async_op=True)
    after = work.get_future().then(lambda done: seen.append(done.value()[0].clone()) or done.value()[0] * 2)
    total = SIZE * (SIZE + 1) / 2
    assert torch.equal(after.wait(), torch.full((4,), 2 * total))
    assert torch.equal(seen[0], torch.full((4,), total))
    assert work.is_completed()
    assert work.exception() is None
    (result,) = torch.futures.collect_all([dist.broadcast(own, 0, async_op=True).get_future()]).wait()
    assert result.wait()[0] is own

    def again(done):  # a callback may wait for another operation
        dist.all_reduce(own)
        return own

    assert dist.all_reduce(own, async_op=True).get_future().then(again).wait() is own
    assert torch.equal(own, torch.full((4,), total * SIZE**2))


what_comes_out_is_what_was_given()
the_backend_keeps_its_calls_and_several_are_one_group()
the_stream_waits_and_not_the_host()
memory_is_kept_until_the_device_is_done()
futures_hold_the_results()
dist.destroy_process_group()
assert not KEPT
