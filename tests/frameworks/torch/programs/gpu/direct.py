"""Direct passes on the GPU, with DISTRUN_DIRECT_BUCKETS=1 and buckets of one layer each.

The first argument is `train`, or what rank 1 does in the third pass, while rank 0's GPU waits for its buckets:
`killed`, `elsewhere` (it reduces something else), or `broken` (NCCL refuses its second bucket). The second is a folder
of these ranks.
"""

import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

import cupy
import playing
import torch
from checking import batches, check, close, loss_of, network, parameters, run_checks, same_on_all_ranks
from expecting import raises

import distrun.torch as hvd
from distrun.errors import CollectiveError
from distrun.runtime.gpu.nccl.direct_queue import DirectQueue

BUCKETS = 3
DEADLINE = 60.0  # seconds
how, folder = sys.argv[1], Path(sys.argv[2])
hvd.init()
playing.play()
RANK, SIZE = hvd.rank(), hvd.size()
queued = []
queue = DirectQueue.queue


def counting(self, handle):
    queued.append(handle.request.name)
    return queue(self, handle)


DirectQueue.queue = counting


def made(rate=0.1):
    model = network()
    groups = [[*layer.parameters()] for layer in model if isinstance(layer, torch.nn.Linear)]
    return model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), rate), groups=groups)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


@check
def all_passes_but_the_first_are_direct():
    (model, optimizer), alone = made(), network()
    plain = torch.optim.SGD(alone.parameters(), 0.1)
    for number, batch in enumerate(batches(4)):
        queued.clear()
        step(model, optimizer, [part[RANK::SIZE] for part in batch])
        step(alone, plain, batch)
        assert len(queued) == (BUCKETS if number else 0), queued
        assert queued == sorted(queued)
    assert close(parameters(model), parameters(alone))


@check
def ranks_whose_gradients_come_in_other_orders_queue_the_same_order():
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(BUCKETS))
    hvd.broadcast_parameters(layers.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layers.parameters(), 0.1), groups=BUCKETS)
    order = [2, 0, 1] if RANK else [0, 1, 2]
    for number in range(4):
        queued.clear()
        optimizer.zero_grad()
        output = torch.ones(1, 4)
        for layer in order:
            output = layers[layer](output)
        output.sum().backward()
        optimizer.step()
        assert queued == (sorted(queued) if number else []), queued
        assert same_on_all_ranks(list(layers.parameters()))


@check
def a_pass_is_negotiated_while_a_rank_has_joined():
    model, optimizer = made()
    for batch in batches(2 if RANK else 4):
        queued.clear()
        step(model, optimizer, batch)
    assert len(queued) == (BUCKETS if RANK else 0)
    hvd.join()
    for batch in batches(2):
        queued.clear()
        step(model, optimizer, batch)
        assert len(queued) == BUCKETS


def third_pass():
    model, optimizer = made()
    hook = model[0].weight.register_post_accumulate_grad_hook
    for batch in batches(2):
        step(model, optimizer, batch)
    if how == "killed" and RANK == 1:
        hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    if how == "broken" and RANK == 1:
        allreduce, numbers = cupy.cuda.nccl.NcclCommunicator.allReduce, count(1)

        def refuse(*arguments):
            if next(numbers) == 2:
                raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
            return allreduce(*arguments)

        cupy.cuda.nccl.NcclCommunicator.allReduce = refuse
    if how == "elsewhere" and RANK == 1:
        hook(lambda _: hvd.allreduce(torch.ones(1), name="elsewhere"))
    word = {"elsewhere": "not by rank 0", "broken": "unhandled system error"}.get(how, "") if RANK else "rank 1"
    with raises(CollectiveError, word):
        step(model, optimizer, batches(1)[0])
    print(f"rank {RANK} has seen it", flush=True)
    if how == "elsewhere":  # neither learns of it from the other's end
        (folder / str(RANK)).touch()
        wait_for(folder / str(1 - RANK))
    sys.exit(1)


def wait_for(path):
    end = time.monotonic() + DEADLINE
    while not path.exists():
        assert time.monotonic() < end, f"{path} is not there"
        time.sleep(0.01)


if how == "train":
    run_checks()
else:
    third_pass()
