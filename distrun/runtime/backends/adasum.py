"""Adasum: a sum that adapts to how much the ranks' gradients agree.

Two gradients a and b become

    (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

which is their sum if they are orthogonal and their average if they are parallel. A gradient of zeros changes nothing.
More than two are combined in pairs, rank 0's with rank 1's and so on, then the results in pairs, and so on. If their
number is odd, the last one waits for the next round. (S. Maleki, M. Musuvathi, T. Mytkowicz et al.: Scaling Distributed
Training with Adaptive Summation, MLSys 2021.)

Each tensor is combined by itself. All arithmetic is in float32 at least, the dot products in float64. Horovod simply
adds gradients whose squared length is below `HOROVODS_LEAST_SQUARE`.

Every rank is sent its slice of all ranks' arrays, combines the slices, and sends the result to all others. Every slice
contributes to the dot products, which are summed over the ranks once in each round. So a rank sends and receives about
twice its array, for any number of ranks, and exactly one rank computes an element: all hold the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.backends.base import Backend, Flat
from distrun.runtime.operations.dtypes import ELEMENT_TYPES, ElementType
from distrun.runtime.operations.reduction import Sum, reduction
from distrun.runtime.operations.request import Request
from distrun.tensor_fusion.packing import unpack

HOROVODS_LEAST_SQUARE = 1e-8
"""The squared length below which Horovod gives a gradient the weight 1."""


def adasum(
    backend: Backend,
    inputs: Sequence[Flat],
    outputs: Sequence[Flat],
    request: Request,
    counts: Sequence[int],
    averages_hosts: bool,
    least_square: float,
    what: str,
) -> None:
    """Combine `inputs` over the ranks into `outputs` by Adasum.

    Args:
        backend: moves the arrays among the ranks.
        inputs: flat arrays, taken as one long array.
        outputs: likewise. They may be `inputs`.
        request: its element type is a floating-point one.
        counts: the number of elements of each tensor in the long array.
        averages_hosts: whether the ranks of a host are averaged first, so that the formula combines hosts only.
        least_square: gradients with a smaller squared length get the weight 1.
        what: names the operation in error messages.
    """
    element = ELEMENT_TYPES[request.dtype]
    whole = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    bounds = [whole.size * rank // backend.size for rank in range(backend.size + 1)]
    splits = [stop - start for start, stop in itertools.pairwise(bounds)]
    slices, _ = backend.alltoall(whole, splits, what)
    vectors = list(_decoded(slices.reshape(backend.size, -1), element, request.prescale))
    if averages_hosts:
        vectors = [np.add.reduce([vectors[rank] for rank in ranks]) / len(ranks) for ranks in backend.host_ranks]
    first = bounds[backend.rank]
    tensors = list(_pieces(counts, first, bounds[backend.rank + 1]))
    combined = _combine_all(backend, vectors, tensors, len(counts), least_square, what)
    gathered, _ = backend.allgather(_encoded(combined, element, request.postscale), what)
    unpack(gathered, outputs)


def _combine_all(
    backend: Backend,
    vectors: list[Flat],
    tensors: Sequence[tuple[int, slice]],
    count: int,
    least_square: float,
    what: str,
) -> Flat:
    """Return `vectors`, this rank's slice of all ranks' arrays, combined in rounds.

    `tensors` are the tensors with elements in this slice, and where. `count` is the number of all tensors.
    """
    total = reduction("float64", Sum, backend.size, 1.0, 1.0)
    while len(vectors) > 1:
        pairs = list(zip(vectors[::2], vectors[1::2], strict=False))
        products = np.zeros((len(pairs), count, 3))
        for pair, (a, b) in enumerate(pairs):
            for tensor, part in tensors:
                products[pair, tensor] = _dot(a[part], b[part]), _dot(a[part], a[part]), _dot(b[part], b[part])
        flat = products.reshape(-1)
        if flat.size:
            backend.allreduce([flat], [flat], total, what)
        combined = []
        for (a, b), row in zip(pairs, products, strict=True):
            result = np.empty_like(a)
            for tensor, part in tensors:
                product, *squares = row[tensor]
                weight_of_a, weight_of_b = (_weight(product, square, least_square) for square in squares)
                result[part] = a.dtype.type(weight_of_a) * a[part] + a.dtype.type(weight_of_b) * b[part]
            combined.append(result)
        vectors = [*combined, *vectors[2 * len(pairs) :]]
    return vectors[0]


def _weight(product: float, square: float, least_square: float) -> float:
    return 1.0 - product / (2.0 * square) if square and square >= least_square else 1.0


def _dot(a: Flat, b: Flat) -> float:
    return float(np.dot(a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)))


def _pieces(counts: Sequence[int], first: int, last: int) -> Iterator[tuple[int, slice]]:
    """Yield the tensors with elements from `first` to `last` of the long array, and their slice of that part."""
    start = 0
    for tensor, count in enumerate(counts):
        piece = slice(max(start, first) - first, min(start + count, last) - first)
        if piece.start < piece.stop:
            yield tensor, piece
        start += count


def _decoded(array: Flat, element: ElementType, factor: float) -> NDArray[Any]:
    wide: NDArray[Any] = np.empty(array.shape, element.accumulator)
    element.decode(array, wide)
    if factor != 1.0:
        wide *= wide.dtype.type(factor)
    return wide


def _encoded(array: Flat, element: ElementType, factor: float) -> Flat:
    if factor != 1.0:
        array = array * array.dtype.type(factor)
    result = np.empty(array.shape, element.storage)
    element.encode(array, result)
    return result
