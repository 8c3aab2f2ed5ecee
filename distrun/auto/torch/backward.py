"""`backward()`: the gradients of this rank's part get the weight that they have in the gradients of the whole batch.

After that the ranks' gradients are averaged by `DistributedOptimizer`'s machinery, before `backward()` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.auto.refusing import refuse
from distrun.auto.torch import losses, optimizers, statistics
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session, is_shared

_NO_OPTIMIZER_LINES = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # before the loop",
    "optimizer.step()  # instead of p -= lr * p.grad",
)
_MARK = "distrun.auto"


def _backward(tensors: Any, *arguments: Any, **options: Any) -> None:
    if is_shared():
        _before([tensors] if isinstance(tensors, Tensor) else list(tensors))
    _plain_backward(tensors, *arguments, **options)


def _before(roots: Sequence[Tensor]) -> None:
    if not len(session.optimizers):
        refuse("backward() is called, and there is no optimizer whose weights could be updated", _NO_OPTIMIZER_LINES)
    session.backwards += 1
    session.backwards_in_batch += 1
    part = session.part
    if part is None:
        session.has_unshared_gradients = True
        return
    optimizers.prepare()
    statistics.check(roots)
    for root in roots:
        _weigh(root, part)


def _weigh(root: Tensor, part: Part) -> None:
    """Have the gradients that flow through a loss's reductions multiplied by what these count for."""
    if root.numel() != 1 or root.dim() > 1:
        refuse(
            f"backward() of a tensor of shape {tuple(root.shape)}: what its elements are to the batch is not known",
            ("loss.mean().backward()",),
        )
    loss = losses.weighted(root, part, session.backwards_in_batch)
    if loss is None:
        refuse(
            "a loss of another kind than those before appears in the middle of an epoch, where the parts of the ranks "
            "are equal: what it is to the whole batch is found out in the first batch of an epoch",
            ("loss = first + weight * second  # from the first batch on, perhaps with weight = 0",),
        )
    for reduction, factor in zip(loss.parts.reductions, loss.factors, strict=True):
        marks = reduction.node.metadata
        if factor != 1 and _MARK not in marks:  # a second backward() through the same graph finds the first one's
            marks[_MARK] = factor
            reduction.node.register_prehook(_multiplied(factor))


def _multiplied(factor: float) -> Callable[[Sequence[Tensor | None]], tuple[Tensor | None, ...]]:
    def multiply(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(None if each is None else each * factor for each in gradients)

    return multiply


def _zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    session.has_unshared_gradients = False
    _plain_zero_grad(optimizer, set_to_none)


_plain_backward = torch.autograd.backward
_plain_zero_grad = torch.optim.Optimizer.zero_grad


def install() -> None:
    """Change `Tensor.backward` and `torch.autograd.backward`."""
    torch.autograd.backward = _backward  # which Tensor.backward calls
    torch.optim.Optimizer.zero_grad = _zero_grad  # type: ignore[method-assign, assignment]
