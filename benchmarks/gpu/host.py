"""Count what GPUs cost the host: calls of functions per operation, on the simulated GPU of tests/simulator.

A program for ranks. Counted are the calls of Python and of C functions that distrun's code makes or is called by, in
all threads. (Time would be the simulator's.) Tensors in host memory play those on the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.ranks import resnet50
from distrun.torch.gradients.reducer import GradientReducer, Settings

RUNS = 30
"""Runs of each program. The least of their counts is the result: a wait for another rank only adds calls."""
TENSORS = 200
SMALL = 1024
"""Elements of a small tensor: 4 KB."""


class Calls:
    """Counts calls in this process, from the moment it is made: threads that are started before are not counted."""

    def __init__(self, package: Path) -> None:
        self._prefix = f"{package}/"
        self._is_ours: dict[Any, bool] = {}
        self._count = 0
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            caller = frame.f_back
            self._count += self._ours(frame) or (caller is not None and self._ours(caller))
        elif event == "c_call":
            self._count += self._ours(frame)

    def _ours(self, frame: FrameType) -> bool:
        known = self._is_ours.get(frame.f_code)
        if known is None:
            known = self._is_ours[frame.f_code] = frame.f_code.co_filename.startswith(self._prefix)
        return known

    def of(self, program: Callable[[], object]) -> int:
        """Return the number of calls in one run of `program`."""
        before = self._count
        program()
        return self._count - before

    def stop(self) -> None:
        """Count nothing from now on. Threads that run keep the function, which costs them time."""
        sys.setprofile(None)
        threading.setprofile(None)


def programs() -> dict[str, Callable[[], object]]:
    """Return the programs to measure, by the name of the operation, after `init`."""
    import distrun.torch as dt

    single = torch.zeros(SMALL)
    many = [torch.zeros(SMALL) for _ in range(TENSORS)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in resnet50()]
    zeros = [torch.zeros_like(parameter) for parameter in parameters]
    optimizer = dt.DistributedOptimizer(torch.optim.SGD(parameters, 0.0))
    if dt.size() == 1:  # a world of one reduces nothing; here it shall
        reducer = GradientReducer("alone", optimizer, {}, Settings())
        reducer._is_alone = False
        vars(optimizer)["_reducer"] = reducer

    def one_by_one() -> None:
        for handle in [dt.allreduce_async_(each, name=f"t{i}", op=dt.Sum) for i, each in enumerate(many)]:
            dt.synchronize(handle)

    def backward() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(parameters, zeros)
        optimizer.synchronize()

    return {
        "an allreduce of 4 KB, in place": lambda: dt.allreduce_(single, name="x", op=dt.Sum),
        "an allreduce of 4 KB, into a new tensor": lambda: dt.allreduce(single, name="n", op=dt.Sum),
        f"{TENSORS} x 4 KB in one call, in place": lambda: dt.grouped_allreduce_(many, name="g", op=dt.Sum),
        f"{TENSORS} x 4 KB in one call, into new tensors": lambda: dt.grouped_allreduce(many, name="h", op=dt.Sum),
        f"{TENSORS} x 4 KB one by one, in place": one_by_one,
        "a broadcast of 4 KB, in place": lambda: dt.broadcast_(single, 0, name="b"),
        "a broadcast of 4 KB, into a new tensor": lambda: dt.broadcast(single, 0, name="c"),
        "an allgather of 4 KB": lambda: dt.allgather(single, name="a"),
        f"the {len(parameters)} gradients of ResNet-50": backward,
    }


class _Weights(torch.nn.Module):
    """A model that is nothing but its parameters."""

    def __init__(self, shapes: Iterable[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList([torch.zeros(shape) for shape in shapes])

    def forward(self) -> torch.Tensor:
        return torch.stack([parameter.view(-1)[0] for parameter in self.all]).sum()


def backend_programs() -> dict[str, Callable[[], object]]:
    """Return the programs of the backend "distrun" of torch.distributed, by the name of the operation."""
    size = distributed.get_world_size()
    part, whole, own = torch.zeros(SMALL), torch.zeros(size * SMALL), torch.zeros(SMALL)
    parts = [torch.zeros(SMALL) for _ in range(10)]
    wholes = [torch.zeros(size * SMALL) for _ in range(10)]
    model = DistributedDataParallel(_Weights(resnet50()))

    def waited_for() -> None:
        work = distributed.all_reduce(own, async_op=True)
        work.wait()

    def with_future() -> None:
        distributed.all_reduce(own, async_op=True).get_future().wait()

    def coalesced() -> None:
        with distributed._coalescing_manager():
            for target, source in zip(wholes, parts, strict=True):
                distributed.all_gather_into_tensor(target, source)

    programs = {
        "all_reduce": lambda: distributed.all_reduce(own),
        "all_reduce, asynchronous": waited_for,
        "all_reduce, its future": with_future,
        "all_gather_into_tensor": lambda: distributed.all_gather_into_tensor(whole, part),
        "reduce_scatter_tensor": lambda: distributed.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: distributed.broadcast(own, 0),
        "10 x all_gather_into_tensor, coalesced": coalesced,
        f"DDP's backward pass, the {len(model.module.all)} gradients of ResNet-50": lambda: model().backward(),
    }
    return {f"backend: {name}": program for name, program in programs.items()}


def main() -> None:
    """Count, and write rank 0's figures to a file: the least number of calls by operation."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    import distrun
    import distrun.torch as dt

    calls = Calls(Path(distrun.__file__).parent)
    dt.init()
    import playing

    playing.play()
    found: dict[str, int] = {}
    from distrun.torch_distributed.work import DistrunWork

    kind: Any = DistrunWork
    kind._devices = lambda work: []  # of futures: this torch has no GPU
    distributed.init_process_group("distrun", init_method="distrun://")
    for name, program in (programs() | backend_programs()).items():
        for _ in range(5):
            program()
        counts = []
        for _ in range(RUNS):
            dt.barrier()
            counts.append(calls.of(program))
        found[name] = min(counts)
    calls.stop()
    distributed.destroy_process_group()
    if dt.rank() == 0:
        options.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
