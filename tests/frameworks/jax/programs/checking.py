"""Shared parts of the rank programs: running checks one after the other, expecting errors, comparing."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import distrun.jax as distrun

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check; all ranks run all checks in the order of their definition."""
    _checks.append(function)
    return function


def run_checks() -> None:
    """Run them. A failure names the check, ends this rank, and so the job."""
    distrun.init()
    for function in _checks:
        try:
            function()
            distrun.barrier()
        except BaseException:
            traceback.print_exc()
            print(f"FAILED on rank {distrun.rank()}: {function.__name__}", file=sys.stderr, flush=True)
            raise SystemExit(1) from None


def same_on_all_ranks(tree: Any) -> bool:
    """Whether all ranks hold the same bits."""
    bits = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
    return all(others == bits for others in distrun.allgather_object(bits))


def close(left: Any, right: Any, tolerance: float = 1e-6) -> None:
    """Make sure that two trees agree, in structure, shapes and values."""
    assert jax.tree.structure(left) == jax.tree.structure(right), (left, right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape, (one.shape, other.shape)
        np.testing.assert_allclose(
            one.astype(np.complex128), other.astype(np.complex128), rtol=tolerance, atol=tolerance
        )
