"""`backward()`: the gradients of this rank's part are multiplied by their weight in the gradients of the whole batch.

After that the machinery of `DistributedOptimizer` averages the ranks' gradients, before `backward()` returns. What
`torch.autograd.grad` returns for a loss also belongs to the whole batch. A hook that the script registers runs before
the average, so its result must not depend on whether it gets the gradient of a part or of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

import distrun.torch as distrun_torch
from distrun.auto import files
from distrun.auto.refusing import refuse
from distrun.auto.torch import graph, losses, optimizers, statistics, trial
from distrun.auto.torch.parts import Part
from distrun.auto.torch.session import current as session, is_shared

_NO_OPTIMIZER_LINES = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # before the loop",
    "optimizer.step()  # instead of p -= lr * p.grad",
)
_HOOK_LINES = (
    "loss.backward()",
    "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)  # or what the hook does, with parameter.grad",
    "optimizer.step()",
)
_MARK = "distrun.auto"
_OF_ONE = {"SelectBackward0", "UnbindBackward0", "IndexBackward0"}  # operations that pick the number of one sample
_PLAIN_SUMS = {"SumBackward0", "AddBackward0"}
_TRIED_EVERY = 100  # calls of a hook


def _backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **options: Any) -> None:
    tensors, grad_tensors = _summed(tensors, grad_tensors)
    arguments = (grad_tensors, *arguments)
    if session.in_backward or not (is_shared() or trial.is_running()):  # a checkpoint calls backward() from inside
        _plain_backward(tensors, *arguments, **options)
        return
    trial.before_backward(_list_of(tensors))
    check_place = _before(_list_of(tensors)) if is_shared() else None
    session.in_backward = True
    try:
        _plain_backward(tensors, *arguments, **options)
    finally:
        session.in_backward = False
    if check_place is not None:
        check_place()


def _summed(tensors: Any, gradients: Any) -> tuple[Any, Any]:
    """Return a tensor's sum times its gradient in place of both, if the gradient is the same for all elements."""
    if not isinstance(tensors, Tensor) or not isinstance(gradients, (Tensor, list, tuple)) or tensors.numel() == 1:
        return tensors, gradients
    gradient = gradients if isinstance(gradients, Tensor) else next(iter(gradients), None)
    if session.in_backward or not (is_shared() or trial.is_running()) or gradient is None:
        return tensors, gradients
    if gradient.shape != tensors.shape or not gradient.numel() or gradient.is_complex():
        return tensors, gradients
    with torch._C._DisableTorchDispatch():
        least, most = (float(each) for each in gradient.detach().aminmax())
    if least != most:
        return tensors, gradients
    with torch.enable_grad():
        return tensors.sum() * least, None


def _list_of(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _before(roots: Sequence[Tensor]) -> Callable[[], None] | None:
    """Weight the losses of a part. Return a function that checks, after `backward()`, the ranks' places in the loop."""
    if not len(session.optimizers):
        refuse("backward() is called, and there is no optimizer whose weights could be updated", _NO_OPTIMIZER_LINES)
    session.backwards += 1
    session.backwards_in_batch += 1
    part = session.part
    if part is None:
        session.has_unshared_gradients = True
        return None
    optimizers.prepare()
    check_place = session.announce()
    statistics.check(roots)
    for root in roots:
        _weigh(root, part)
    return check_place


def _weigh(root: Tensor, part: Part) -> None:
    """Register hooks that multiply the gradients through each reduction of a loss by the reduction's weight."""
    if root.numel() != 1 or root.dim() > 1:
        refuse(
            f"backward() of a tensor of shape {tuple(root.shape)}: what its elements are to the batch is not known",
            ("loss.mean().backward()",),
        )
    loss = _known(losses.weighted(root, part, session.backwards_in_batch, trial.divisors_of_batch))
    for reduction, factor in zip(loss.decomposition.reductions, loss.factors, strict=True):
        marks = reduction.node.metadata
        if factor != 1 and _MARK not in marks:  # a second backward() through the same graph finds the first one's
            marks[_MARK] = factor
            reduction.node.register_prehook(_multiplied(factor))
    for node, place, weight in loss.products():
        if weight is None:
            refuse(
                "a loss of means and sums is multiplied by a number that has a gradient, and each of them counts in "
                "another way to the whole batch",
                ("loss = weight * first + weight * second  # instead of weight * (first + second)",),
            )
        if weight != 1 and _MARK not in node.metadata:
            node.metadata[_MARK] = weight
            node.register_hook(_multiplied(weight, place))


def _known(loss: losses.Weighted | None) -> losses.Weighted:
    if loss is None:
        refuse(
            "a loss of another kind than those before appears in the middle of an epoch, where the parts of the ranks "
            "are equal: what it is to the whole batch is found out in the first 16 batches of an epoch",
            ("loss = first + weight * second  # from the first batch on, perhaps with weight = 0",),
        )
    return loss


def _multiplied(factor: float, place: int | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return a hook of a node that multiplies all gradients, or that of the input at `place`."""

    def multiply(gradients: Sequence[Tensor | None], *_: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        return tuple(
            each if each is None or place not in (None, which) else each * factor
            for which, each in enumerate(gradients)
        )

    return multiply


# torch.autograd.grad --------------------------------------------------------------------------------------------------


def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *arguments: Any,
    **options: Any,
) -> Any:
    part, roots, sources = session.part, _list_of(outputs), _list_of(inputs)
    weights = {place for place, each in enumerate(sources) if isinstance(each, torch.nn.Parameter)}
    is_of_batch = (
        is_shared()
        and part is not None
        and not part.is_whole
        and not session.in_backward
        and not session.in_grad
        and grad_outputs is None
        and all(_is_of_batch(each, part, bool(weights)) for each in roots)
        and not session.is_evaluating
    )
    if not is_of_batch or part is None:
        return _plain_grad(outputs, inputs, grad_outputs, retain_graph, create_graph, *arguments, **options)
    if weights and create_graph:
        refuse(
            "torch.autograd.grad with create_graph=True gives the gradients of weights by this rank's part alone, and "
            "what is computed from them is not known for the batch",
            ("torch.autograd.grad(loss, x, create_graph=True)  # by the samples",),
        )
    session.backwards += bool(weights)
    first = session.grads_in_batch
    session.grads_in_batch += len(roots)
    check_place = session.announce() if weights else None
    handles = [handle for place, root in enumerate(roots, first) for handle in _shares(root, part, place)]
    session.in_grad = True  # in a mode that follows operations, torch calls torch.autograd.grad again from inside
    try:
        found = _plain_grad(outputs, inputs, None, retain_graph, create_graph, *arguments, **options)
    finally:
        session.in_grad = False
        for handle in handles:
            handle.remove()
    if check_place is not None:
        check_place()
    return tuple(
        distrun_torch.allreduce(each, op=distrun_torch.Sum, name=f"auto.grad.{place}")
        if place in weights and each is not None
        else each
        for place, each in enumerate(found)
    )


def _is_of_batch(root: Tensor, part: Part, by_weights: bool) -> bool:
    """Whether the gradients of a number depend on the other ranks' samples, as it reduces all samples of a part.

    The gradient of a plain sum by the samples does not: each sample's gradient is the same in the part as in the batch.
    """
    if root.grad_fn is None or root.numel() != 1 or root.dim() > 1:
        return False
    taken = graph.decompose(root.grad_fn)
    if any(each.node.name() in _OF_ONE for each in taken.reductions):
        return False
    is_sum = all(name in _PLAIN_SUMS for name in taken.signature)  # the divisor of a mean may be 1, too
    over_samples = [each for each in taken.reductions if each.is_counted or not prod(each.shape) % part.size]
    return bool(over_samples) and (by_weights or not is_sum)


def _shares(root: Tensor, part: Part, place: int) -> list[Any]:
    """Register hooks that multiply the gradients of a loss by its reductions' shares in the loss of the batch.

    `place` tells the losses of a batch apart, and is the same on all ranks. It is negated, so that it is not mistaken
    for the number of a call of `backward()`.
    """
    loss = _known(losses.weighted(root, part, -place))
    size = len(part.sizes)
    return [
        reduction.node.register_prehook(_multiplied((1.0 if _MARK in reduction.node.metadata else factor) / size))
        for reduction, factor in zip(loss.decomposition.reductions, loss.factors, strict=True)
    ]


# Hooks ----------------------------------------------------------------------------------------------------------------


def _register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    if is_shared() and files.is_called_by_script():
        hook = _independent(hook, isinstance(tensor, torch.nn.Parameter))
    return _plain_register_hook(tensor, hook)  # type: ignore[no-untyped-call]


def _register_post_hook(tensor: Tensor, hook: Callable[[Tensor], None]) -> Any:
    if is_shared() and files.is_called_by_script():
        hook = _looking(hook)
    return _plain_register_post_hook(tensor, hook)  # type: ignore[no-untyped-call]


def _independent(hook: Callable[[Tensor], Tensor | None], is_of_weight: bool) -> Callable[[Tensor], Tensor | None]:
    """Return a hook that refuses the script if the result for the average gradient is not the average of the results.

    A hook of a tensor of samples is different: it gets the gradient that these have in the whole batch.
    """
    calls = 0

    def called(gradient: Tensor) -> Tensor | None:
        nonlocal calls
        part = session.part
        if part is None or part.is_whole or not session.in_backward or not gradient.dim() or gradient.is_sparse:
            return hook(gradient)
        if not is_of_weight and not gradient.shape[0] % part.size:
            given = gradient / len(part.sizes)
            found, is_same = _called(hook, given)
            return None if is_same else found * len(part.sizes)
        found, is_same = _called(hook, gradient)
        if not is_same:
            if not calls % _TRIED_EVERY and not _is_linear(hook, gradient):
                refuse(
                    "a hook of a gradient (register_hook) does more than to scale it, and it is called with that of "
                    "this rank's part, before the ranks' gradients are averaged",
                    _HOOK_LINES,
                )
            calls += 1
        return found

    return called


def _called(hook: Callable[[Tensor], Tensor | None], gradient: Tensor) -> tuple[Tensor, bool]:
    """Return the gradient after a hook, which may have changed it in place, and whether the hook left it as it was."""
    version = gradient._version
    found = hook(gradient)
    return (gradient, gradient._version == version) if found is None else (found, False)


def _is_linear(hook: Callable[[Tensor], Tensor | None], gradient: Tensor) -> bool:
    """Whether a hook is additive: its result for a sum is the sum of its results, for small terms and large ones."""
    generator = torch.Generator().manual_seed(0)
    exponent, tolerance = (6, 1e-3) if gradient.dtype in (torch.float32, torch.float64) else (2, 0.05)
    with torch.no_grad():
        for size in (10.0**-exponent, 1.0, 10.0**exponent):
            one, other = (
                (size * torch.randn(gradient.shape, generator=generator)).to(gradient.device, gradient.dtype)
                for _ in range(2)
            )
            of_sum, of_one, of_other = (_called(hook, each)[0] for each in (one + other, one, other))
            error = (of_sum - (of_one + of_other)).abs().max()
            if not float(error) <= tolerance * float((of_one.abs() + of_other.abs()).max()):
                return False
    return True


def _looking(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a post-accumulate hook that refuses the script if `hook` changes the gradient of the weight."""

    def called(weight: Tensor) -> None:
        before = weight.grad
        version = -1 if before is None else before._version
        hook(weight)
        is_same = weight.grad is before and (before is None or before._version == version)
        if session.in_backward and session.part is not None and not is_same:
            refuse(
                "a hook (register_post_accumulate_grad_hook) changes a gradient before the ranks' are averaged",
                _HOOK_LINES,
            )

    return called


def _zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    session.has_unshared_gradients = False
    _plain_zero_grad(optimizer, set_to_none)


_plain_backward, _plain_grad = torch.autograd.backward, torch.autograd.grad
_plain_register_hook = Tensor.register_hook
_plain_register_post_hook = Tensor.register_post_accumulate_grad_hook
_plain_zero_grad = torch.optim.Optimizer.zero_grad


def install() -> None:
    """Change the functions that compute gradients, and those that register hooks on them."""
    torch.autograd.backward = _backward  # which Tensor.backward calls
    torch.autograd.grad = _grad
    Tensor.register_hook = _register_hook  # type: ignore[method-assign]
    Tensor.register_post_accumulate_grad_hook = _register_post_hook  # type: ignore[method-assign]
    torch.optim.Optimizer.zero_grad = _zero_grad  # type: ignore[method-assign, assignment]
