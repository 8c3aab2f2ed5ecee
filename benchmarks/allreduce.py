"""Allreduce: in place, sum, float32, from 4 KB to 100 MB, beside what copying as much memory costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Rounds, Summary, summary
from benchmarks.support.ranks import OPENMPI, SIZE, Rank, main

Array = NDArray[np.float32]

SIZES = {
    "4 KB": (4 << 10, Rounds(60, turn=5)),
    "64 KB": (64 << 10, Rounds(60, turn=5)),
    "1 MB": (1 << 20, Rounds(60, turn=3)),
    "4 MB": (4 << 20, Rounds(60)),
    "32 MB": (32 << 20, Rounds(24)),
    "100 MB": (100 << 20, Rounds(15)),
}
"""The number of bytes, and how often they are reduced."""

COPY, COPIES = "memcpy", "2 memcpys"
TENSOR, ARRAY, EMPTY, GLOO = "distrun", "distrun, numpy", "distrun.empty", "gloo"


def compare(rank: Rank) -> Comparison:
    """Compare the allreduce of all sizes."""
    comparison = Comparison(
        f"allreduce in place, sum, float32, {SIZE} ranks",
        "size",
        [TENSOR, ARRAY, EMPTY, GLOO, OPENMPI, COPY, COPIES],
        [(GLOO, TENSOR), (OPENMPI, TENSOR), (TENSOR, EMPTY), (TENSOR, COPY), (EMPTY, COPY)],
        notes=[
            f"{COPY}: numpy.copyto of as many bytes between warm arrays, the other rank asleep; "
            f"{COPIES}: both ranks at once.",
            f"{TENSOR}, {ARRAY}: an ordinary torch tensor and numpy array; {EMPTY}: an array of distrun.empty, where "
            "all others have ordinary memory. "
            f"{GLOO}: torch.distributed.all_reduce; {OPENMPI}: mpi4py's Allreduce(IN_PLACE). "
            "Each rank has just written its own one.",
        ],
    )
    for label, (nbytes, rounds) in SIZES.items():
        comparison.add(label, _measure(rank, nbytes // 4, rounds))
    return comparison


def _measure(rank: Rank, count: int, rounds: Rounds) -> dict[str, Summary]:
    """Measure one size. A lonely memcpy has its turn in every round, too, but on rank 0 alone, by rank 0's clock."""
    reductions = _reductions(rank, count)
    for name, (fill, reduce, result) in reductions.items():
        _check(rank, name, fill, reduce, result)
    # Written, both: what has only been asked for is one page of zeros, again and again.
    source, target = np.ones(count, np.float32), np.ones(count, np.float32)

    def copy() -> None:
        np.copyto(target, source)

    programs: dict[str, Callable[[], object]] = {COPIES: copy}
    programs |= {name: reduce for name, (_, reduce, _) in reductions.items()}
    programs = {COPY: copy if rank.rank == 0 else _nothing, **programs}

    def write(name: str) -> None:
        """Write zeros again, as a backward pass writes gradients: else each rank's slice stays in its own cache."""
        if name in reductions:
            fill, *_ = reductions[name]
            fill(0.0)

    spans = rank.take_turns(programs, rounds, after=write)
    results = {name: summary(rank.durations(spans[name])) for name in programs if name != COPY}
    return {COPY: summary([end - begun for begun, end in spans[COPY]]), **results}


def _nothing() -> None:
    """Do nothing: this rank sleeps in the next barrier while another one is measured alone."""


Reduction = tuple[Callable[[float], object], Callable[[], object], Callable[[], Array]]
"""Three functions: fill the buffer with a number, reduce it, return it as an array."""


def _reductions(rank: Rank, count: int) -> dict[str, Reduction]:
    import torch
    import torch.distributed
    from mpi4py import MPI

    import distrun
    import distrun.torch

    shared = distrun.empty(count)
    ordinary, tensor = torch.empty(count), torch.empty(count)
    array, buffer = np.empty(count, np.float32), np.empty(count, np.float32)

    def of_shared_memory() -> Any:
        return distrun.allreduce_(shared, name=f"shared.{count}", op=distrun.Sum)

    def of_a_tensor() -> Any:
        return distrun.torch.allreduce_(ordinary, name=f"ordinary.{count}", op=distrun.Sum)

    def of_an_array() -> Any:
        return distrun.allreduce_(array, name=f"array.{count}", op=distrun.Sum)

    def by_gloo() -> Any:
        return torch.distributed.all_reduce(tensor)

    def by_openmpi() -> None:
        rank.mpi.Allreduce(MPI.IN_PLACE, buffer)

    return {
        EMPTY: (shared.fill, of_shared_memory, lambda: shared),
        TENSOR: (ordinary.fill_, of_a_tensor, ordinary.numpy),
        ARRAY: (array.fill, of_an_array, lambda: array),
        GLOO: (tensor.fill_, by_gloo, tensor.numpy),
        OPENMPI: (buffer.fill, by_openmpi, lambda: buffer),
    }


def _check(
    rank: Rank, name: str, fill: Callable[[float], object], reduce: Callable[[], object], result: Callable[[], Array]
) -> None:
    """Check the sum once, before anything is measured; then fill in zeros, whose sums stay zero."""
    fill(rank.rank + 1.0)
    reduce()
    rank.settle()
    wanted = SIZE * (SIZE + 1) / 2
    if not (result() == wanted).all():
        raise SystemExit(f"{name}: the sum of {result().size} elements is {result()}, not {wanted} everywhere")
    fill(0.0)


if __name__ == "__main__":
    main(compare)
