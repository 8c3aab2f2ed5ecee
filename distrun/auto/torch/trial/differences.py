"""Gradients of the weights, and the differences of those of the ranks from those of a copy."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

EXACT, TF32, ROUNDED = 2e-4, 5e-3, 0.05
"""Relative differences that rounding explains: of float32 and float64, of TF32, and of 16 bits."""

_COMPARED = 1 << 17  # elements of a gradient
_SMALL = 1e-2  # of the norm of all gradients: what is smaller is compared with that


class Gradient(NamedTuple):
    """The part of a gradient that is compared."""

    shape: tuple[int, ...]
    norm: float
    elements: Tensor
    """Some at equal distances, of a small gradient all; float64, on the CPU."""


Gradients = dict[tuple[int, int], Gradient | None]
"""The gradients of weights, by the place of the optimizer and that of the weight in it; None where there is none."""


def gradient_of(weight: Tensor) -> Gradient | None:
    """Return the part of a weight's gradient that is compared; None: it has none."""
    gradient = weight.grad
    if gradient is None:
        return None
    flat = (gradient.to_dense() if gradient.is_sparse else gradient).detach().flatten()
    elements = flat[:: -(-flat.numel() // _COMPARED) or 1].to("cpu", torch.float64, copy=True)
    norm = elements.norm() if elements.numel() == flat.numel() else flat.norm(dtype=torch.float64)
    return Gradient(tuple(gradient.shape), float(norm), elements)


def difference(whole: Gradients, mine: Gradients, tolerance: float) -> str:
    """Return in what gradients differ; "" if they do not, but for rounding.

    The gradients of a first layer may be far off by rounding to 16 bits alone (a quarter, of a ResNet), those of a last
    one never are. So where something is rounded like that, only a difference in all weights is one.
    """
    if whole.keys() != mine.keys():
        has_skipped = not (are_finite(whole) and are_finite(mine))  # a GradScaler, a step
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
    """Whether numbers are equal, but for rounding; two that are not finite are."""
    if not (math.isfinite(expected) and math.isfinite(found)):
        return math.isfinite(expected) == math.isfinite(found)
    return abs(expected - found) <= tolerance
