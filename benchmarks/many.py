"""Many: 200 tensors of 4 KB, each started on its own and then waited for, and all of them in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds
from benchmarks.support.ranks import OPENMPI, SIZE, Rank, main

COUNT, ELEMENTS = 200, 1024
ROUNDS = Rounds(45, turn=3)
DISTRUN, DISTRUN_TORCH, GLOO = "distrun", "distrun.torch", "gloo"

Program = Callable[[], object]


def compare(rank: Rank) -> Comparison:
    """Compare both ways of submitting the tensors."""
    comparison = Comparison(
        f"{COUNT} tensors of {ELEMENTS * 4 // 1024} KB, in place, sum, float32, {SIZE} ranks",
        "round",
        [DISTRUN, DISTRUN_TORCH, GLOO, OPENMPI],
        [(DISTRUN_TORCH, DISTRUN), (GLOO, DISTRUN_TORCH), (OPENMPI, DISTRUN_TORCH)],
        notes=[
            f"{DISTRUN}: numpy arrays; {DISTRUN_TORCH}: tensors. "
            f"{GLOO}: all_reduce(async_op=True); in one call: flattened into one tensor, reduced, copied back. "
            f"{OPENMPI}: Iallreduce and Waitall.",
        ],
    )
    apart = {**_distrun(rank), **_distrun_torch(rank), **_gloo(rank), **_openmpi(rank)}
    at_once = {**_distrun_grouped(rank), **_distrun_torch_grouped(rank), **_gloo_coalesced(rank)}
    # All in one go, so that both rows were measured at the same time.
    results = rank.compare({**apart, **{f"{name} at once": program for name, program in at_once.items()}}, ROUNDS)
    comparison.add("started one by one, then waited for", {name: results[name] for name in apart})
    comparison.add("in one call", {name: results[f"{name} at once"] for name in at_once})
    return comparison


def _arrays(rank: Rank) -> list[NDArray[np.float32]]:
    return [np.full(ELEMENTS, index + rank.rank, np.float32) for index in range(COUNT)]


def _checked(rank: Rank, name: str, arrays: list[NDArray[np.float32]], program: Program) -> dict[str, Program]:
    """Run the program once and check the sums; then fill in zeros, whose sums stay zero."""
    program()
    rank.settle()
    for index, array in enumerate(arrays):
        wanted = index * SIZE + SIZE * (SIZE - 1) / 2
        if not (array == wanted).all():
            raise SystemExit(f"{name}: the sum of tensor {index} is {array}, not {wanted} everywhere")
        array.fill(0.0)
    return {name: program}


def _distrun(rank: Rank) -> dict[str, Program]:
    import distrun

    arrays = _arrays(rank)
    names = [f"tensor.{index}" for index in range(COUNT)]

    def program() -> None:
        handles = [
            distrun.allreduce_async_(array, name, distrun.Sum) for array, name in zip(arrays, names, strict=True)
        ]
        for handle in handles:
            handle.wait()

    return _checked(rank, DISTRUN, arrays, program)


def _distrun_grouped(rank: Rank) -> dict[str, Program]:
    import distrun

    arrays = _arrays(rank)
    return _checked(rank, DISTRUN, arrays, lambda: distrun.grouped_allreduce_(arrays, name="group", op=distrun.Sum))


def _distrun_torch(rank: Rank) -> dict[str, Program]:
    import torch

    import distrun.torch

    arrays = _arrays(rank)
    tensors = [torch.from_numpy(array) for array in arrays]
    names = [f"torch tensor.{index}" for index in range(COUNT)]

    def program() -> None:
        handles = [
            distrun.torch.allreduce_async_(tensor, name=name, op=distrun.torch.Sum)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        for handle in handles:
            handle.wait()

    return _checked(rank, DISTRUN_TORCH, arrays, program)


def _distrun_torch_grouped(rank: Rank) -> dict[str, Program]:
    import torch

    import distrun.torch

    arrays = _arrays(rank)
    tensors = [torch.from_numpy(array) for array in arrays]
    program = lambda: distrun.torch.grouped_allreduce_(tensors, name="torch group", op=distrun.torch.Sum)  # noqa: E731
    return _checked(rank, DISTRUN_TORCH, arrays, program)


def _gloo(rank: Rank) -> dict[str, Program]:
    import torch
    import torch.distributed

    arrays = _arrays(rank)
    tensors = [torch.from_numpy(array) for array in arrays]

    def program() -> None:
        works: list[Any] = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    return _checked(rank, GLOO, arrays, program)


def _gloo_coalesced(rank: Rank) -> dict[str, Program]:
    import torch
    import torch.distributed

    arrays = _arrays(rank)
    tensors = [torch.from_numpy(array) for array in arrays]

    def program() -> None:
        flat = torch.cat(tensors)
        torch.distributed.all_reduce(flat)
        torch._foreach_copy_(tensors, flat.split(ELEMENTS))

    return _checked(rank, GLOO, arrays, program)


def _openmpi(rank: Rank) -> dict[str, Program]:
    from mpi4py import MPI

    arrays = _arrays(rank)

    def program() -> None:
        MPI.Request.Waitall([rank.mpi.Iallreduce(MPI.IN_PLACE, array) for array in arrays])

    return _checked(rank, OPENMPI, arrays, program)


if __name__ == "__main__":
    main(compare)
