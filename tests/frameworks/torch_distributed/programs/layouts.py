"""Process groups of many layouts, the tensors of their ranks, and checks that are made in each of them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

WAYS = (False, True)
"""Values of `async_op`."""

IS_COMPACT = "compact" in sys.argv
"""Whether a selection is enough."""

_checks: list[Callable[[Group], None]] = []


class Group:
    """A process group that this rank belongs to."""

    def __init__(self, group: dist.ProcessGroup | None, ranks: Sequence[int]) -> None:
        self.group = group
        self.ranks = list(ranks)
        self.size = len(self.ranks)
        self.rank = self.ranks.index(dist.get_rank())

    def tensors(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
        """The tensors of all ranks, by rank of the group: small whole numbers."""
        return [tensor_of(rank, shape, dtype, seed) for rank in self.ranks]

    def some(self, things: Sequence[T]) -> Sequence[T]:
        """All of them in the world's group, the first one and the last one in others."""
        return things if self.group is None and not IS_COMPACT else [things[0], things[-1]]

    def cases(self, *things: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Every combination of some of each of the things, and of a value of `async_op`."""
        return product(*map(self.some, things), WAYS)

    def other_root(self) -> tuple[int, int]:
        """The last rank of the group: its number in the world and in the group."""
        return self.ranks[-1], self.size - 1


def tensor_of(rank: int, shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The tensor of a rank."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    whole = torch.randint(0, 5, tuple(shape), generator=generator)
    if dtype.is_complex:
        whole = torch.complex(whole.double(), torch.randint(0, 5, tuple(shape), generator=generator).double())
    return whole.to(dtype)


def layouts() -> Iterator[Group]:
    """Every group of this rank: the world, that again, each rank with the next, each rank alone, and all in reverse."""
    size = dist.get_world_size()
    everybody = list(range(size))
    yield Group(None, everybody)
    lists = [everybody, everybody, *([rank, rank + 1] for rank in range(size - 1)), *([rank] for rank in everybody)]
    for ranks in lists[1:3] if IS_COMPACT else lists:
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            yield Group(group, ranks)
    # What `new_group` does, but for the order of the ranks.
    yield Group(dist.distributed_c10d._new_group_with_tag(everybody[::-1], sort_ranks=False), everybody[::-1])


def check(function: Callable[[Group], None]) -> Callable[[Group], None]:
    """Register a check."""
    _checks.append(function)
    return function


def run_checks(groups: Sequence[Group]) -> None:
    """Make all checks in all groups; a failure ends this rank, and so the job."""
    for group in groups:
        for function in _checks:
            try:
                function(group)
            except BaseException:
                traceback.print_exc()
                print(f"FAILED on rank {dist.get_rank()} of {group.ranks}: {function.__name__}", file=sys.stderr)
                raise SystemExit(1) from None


def finish(work: dist.Work | None) -> None:
    """Wait for what a call has returned, if it was an asynchronous one."""
    if work is not None:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> None:
    """Expect equal elements, but for a relative difference, in a tensor of the same dtype and shape."""
    assert found.dtype is expected.dtype, f"{found.dtype} instead of {expected.dtype}"
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    if found.is_floating_point() and tolerance:
        assert torch.allclose(found, expected, tolerance), f"{found} instead of {expected}"
    else:
        assert torch.equal(found, expected), f"{found} instead of {expected}"


def same_each(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Expect `same` of each pair."""
    for one, other in zip(found, expected, strict=True):
        same(one, other)
