"""Gradients of the weights, and the differences between the ranks' and a copy's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

EXACT, TF32, ROUNDED = 2e-4, 5e-3, 0.05
"""Relative differences that rounding explains: for float32 and float64, for TF32, and for 16-bit types."""

_COMPARED = 1 << 17  # elements of a gradient
_SMALL = 1e-2  # of the norm of all gradients: the least norm that the difference of a gradient is relative to


class Gradient(NamedTuple):
    """The norm of a gradient, and the elements of it that are compared."""

    shape: tuple[int, ...]
    norm: float
    elements: Tensor
    """A regular sample, or all elements of a small gradient. float64, on the CPU."""


Gradients = dict[tuple[int, int], Gradient | None]
"""The gradients of weights, by the positions of the optimizer and of the weight in it. None if it has no gradient."""


def gradient_of(weight: Tensor) -> Gradient | None:
    """Return what is compared of a weight's gradient, or None if it has no gradient."""
    gradient = weight.grad
    if gradient is None:
        return None
    flat = (gradient.to_dense() if gradient.is_sparse else gradient).detach().flatten()
    elements = flat[:: -(-flat.numel() // _COMPARED) or 1].to("cpu", torch.float64, copy=True)
    norm = elements.norm() if elements.numel() == flat.numel() else flat.norm(dtype=torch.float64)
    return Gradient(tuple(gradient.shape), float(norm), elements)


def difference(whole: Gradients, mine: Gradients, tolerance: float) -> str:
    """Return a clause about the difference between gradients, or "" if rounding explains it.

    Rounding to 16 bits alone may change the gradients of a first layer a lot (by a quarter, in a ResNet), but never the
    last layer's. So with such rounding, the script is refused only if no large gradient agrees.
    """
    if whole.keys() != mine.keys():
        has_skipped = not (are_finite(whole) and are_finite(mine))  # a GradScaler has skipped a step
        return "" if has_skipped else "optimizers make their steps in another order"
    total = sum(each.norm**2 for each in whole.values() if each is not None) ** 0.5
    clauses = []
    for weight, expected in whole.items():
        found = mine[weight]
        like = expected or found
        if like is None:
            continue
        zero = Gradient(like.shape, 0.0, torch.zeros_like(like.elements))
        expected, found = expected or zero, found or zero
        norm = max(expected.norm, _SMALL * total)
        # The norm of the sampled difference, scaled up to all elements. The norms themselves are exact.
        elements = found.elements
        scale = math.sqrt(math.prod(expected.shape) / max(1, elements.numel()))
        error = max(float((expected.elements - elements).norm()) * scale, abs(expected.norm - found.norm))
        if not are_close(expected.norm, expected.norm + error, norm * tolerance):
            clauses.append(
                f"a weight of shape {list(expected.shape)} gets a gradient of norm {found.norm:.4g}, where "
                f"that of the batch has {expected.norm:.4g}, and the difference {error:.4g}"
            )
        elif tolerance > EXACT and max(expected.norm, found.norm) >= _SMALL * total:
            return ""
    return next(iter(clauses), "")


def are_finite(gradients: Gradients) -> bool:
    """Whether the norms of all gradients are finite numbers."""
    return all(math.isfinite(each.norm) for each in gradients.values() if each is not None)


def are_close(expected: float, found: float, tolerance: float) -> bool:
    """Whether numbers differ by at most `tolerance`. Two that are not finite are close."""
    if not (math.isfinite(expected) and math.isfinite(found)):
        return math.isfinite(expected) == math.isfinite(found)
    return abs(expected - found) <= tolerance
