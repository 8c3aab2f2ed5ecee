"""Shared parts of the rank programs: running checks in order, eagerly and in functions; and small models."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

import distrun.tensorflow as hvd

_checks: list[Callable[[], None]] = []
WAYS = {"eager": lambda function: function, "tf.function": tf.function}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check; all ranks run all checks in the order of their definition."""
    _checks.append(function)
    return function


def in_every_way(function: Callable[[Callable], None]) -> None:
    """Register a check that is given what turns a function into one that runs eagerly, and then into a graph."""
    for name, way in WAYS.items():

        def run(way: Callable = way) -> None:
            function(way)

        run.__name__ = f"{function.__name__} ({name})"
        _checks.append(run)


def run_checks() -> None:
    """Run them; rank 0 prints which are good. A failure names the check, ends this rank, and so the job."""
    hvd.init()
    for function in _checks:
        try:
            function()
            hvd.barrier()
        except BaseException:
            traceback.print_exc()
            print(f"FAILED on rank {hvd.rank()}: {function.__name__}", file=sys.stderr, flush=True)
            raise SystemExit(1) from None
        if hvd.rank() == 0:
            print(f"good: {function.__name__}", flush=True)


def same_on_all_ranks(tensors: Sequence[Any]) -> bool:
    """Whether all ranks hold the same bits."""
    bits = [np.asarray(tensor).tobytes() for tensor in tensors]
    return all(others == bits for others in hvd.allgather_object(bits, name="bits"))


def close(left: Sequence[Any], right: Sequence[Any], tolerance: float = 1e-12) -> bool:
    """Whether two lists of tensors agree."""
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right, strict=True))


class Network:
    """A small model in double precision, the same on all ranks."""

    def __init__(self, widths: Sequence[int] = (6, 16, 8, 2), seed: int = 3) -> None:
        random = np.random.default_rng(seed)
        self.variables = []
        for place, (rows, columns) in enumerate(pairwise(widths)):
            weights = random.standard_normal((rows, columns)) / np.sqrt(rows)
            self.variables.append(tf.Variable(weights, name=f"layer{place}/kernel"))
            self.variables.append(tf.Variable(tf.zeros(columns, tf.float64), name=f"layer{place}/bias"))

    def __call__(self, rows: tf.Tensor) -> tf.Tensor:
        *hidden, (kernel, bias) = zip(self.variables[::2], self.variables[1::2], strict=True)
        for weights, offsets in hidden:
            rows = tf.tanh(rows @ weights + offsets)
        return rows @ kernel + bias

    def loss(self, batch: tuple[Any, Any]) -> tf.Tensor:
        """The mean squared error: its mean over equal parts is that of the whole."""
        return tf.reduce_mean((self(batch[0]) - batch[1]) ** 2)


def batches(count: int, rows: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    """The combined batches, the same on all ranks."""
    random = np.random.default_rng(5)
    return [(random.standard_normal((rows, 6)), random.standard_normal((rows, 2))) for _ in range(count)]


def mine(batch: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of a combined batch."""
    part = slice(hvd.rank(), None, hvd.size())
    return batch[0][part], batch[1][part]
