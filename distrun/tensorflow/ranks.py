"""Joins the job, and offers rank and size as tensors, for graphs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.graphs.tensorflow import binding
from distrun.graphs.tensorflow.facts import scalar
from distrun.runtime.collectives import initialisation
from distrun.runtime.process_sets.process_sets import by_id
from distrun.runtime.world import world

__all__ = ["init", "local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`.

    Where there are GPUs, TensorFlow sees only this rank's GPU, as GPU:0.

    Call it before TensorFlow computes anything, because after that the choice of GPUs is fixed.
    """
    initialisation.init(comm, process_sets)
    binding.bind()
    binding.keep_files_apart()


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks in a process set, as an int32 scalar. A graph looks it up each time it runs."""
    return scalar(lambda: by_id(process_set_id).size(), name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Return this process's rank, as an int32 scalar. A graph looks it up each time it runs."""
    return scalar(world.rank, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return the number of ranks on this host, as an int32 scalar. A graph looks it up each time it runs."""
    return scalar(world.local_size, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return this process's rank on its host, as an int32 scalar. A graph looks it up each time it runs."""
    return scalar(world.local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return whether this rank belongs to a process set, as an int32 scalar: 1 or 0. A graph looks it up each time it
    runs."""
    return scalar(lambda: by_id(process_set_id).included(), name)
