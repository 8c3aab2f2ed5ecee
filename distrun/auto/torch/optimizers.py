"""Optimizers: their weights become rank 0's before the first training step, and all gradients are averaged."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import distrun.torch as distrun_torch
from distrun.auto import comparing, job
from distrun.auto.output import announce
from distrun.auto.refusing import refuse
from distrun.auto.torch import generators, reading, trial
from distrun.auto.torch.session import current as session, is_shared, modules_of, weights_of
from distrun.torch.gradients.reducer import GradientReducer
from distrun.torch.optimizer import Distributed

_COMPARED_EVERY = 100  # steps
_STEP_LINES = (
    "for x, y in torch.utils.data.DataLoader(dataset, batch_size=N, shuffle=True):",
    "    ...  # forward, backward, step",
    "or, without --auto:",
    "import distrun.torch as distrun",
    "distrun.init()",
    "distrun.broadcast_parameters(model.state_dict(), root_rank=0)",
    "optimizer = distrun.DistributedOptimizer(optimizer)  # and let each rank work on data of its own",
)
_LAZY_LINES = (
    "model(next(iter(loader))[0])  # makes the weights",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # after that",
)
_OF_NUMBERS = "A loss is that of the whole batch; what else is counted in the training loop is of rank 0's part."

_WHY_BUFFERS = (
    "The script computes them from the samples of a batch, of which each rank has its part (a codebook that is "
    "averaged, a queue of samples, InstanceNorm with track_running_stats=True), where only layers of batch "
    "normalisation are known"
)

_owners: list[weakref.ref[torch.nn.Module]] = []  # the outermost modules that hold the weights
_names: weakref.WeakKeyDictionary[Optimizer, dict[int, str]] = weakref.WeakKeyDictionary()


def prepare() -> None:
    """Give rank 0's weights to the optimizers that are new since the last batch, and reduce their gradients."""
    if len(session.prepared) == len(session.optimizers):
        return
    for optimizer in session.in_order(session.optimizers - session.prepared):
        _check_made(optimizer)
        _check_disjoint(optimizer)
        _broadcast(optimizer)
        if not isinstance(optimizer, Distributed):
            distrun_torch.DistributedOptimizer(optimizer)
            reducer = getattr(optimizer, "_reducer", None)
            if reducer is not None:  # the loss that a closure returns is read as well
                reducer.reduce_loss = reading.loss_of_all
        session.prepared.add(optimizer)


def _check_made(optimizer: Optimizer) -> None:
    """Refuse an optimizer of weights that the first forward pass will create."""
    if any(torch.nn.parameter.is_lazy(each) for each in weights_of(optimizer)):
        refuse(
            "an optimizer has weights that are not made before the first forward pass (lazy layers), so that rank 0's "
            "cannot be given to all",
            _LAZY_LINES,
        )


def _check_disjoint(optimizer: Optimizer) -> None:
    """Refuse an optimizer that shares parameters with another one that is in use."""
    if not _shares(optimizer):
        return
    gc.collect()  # an optimizer that the script has dropped may not be freed yet
    if _shares(optimizer):
        refuse(
            "two optimizers have parameters in common: the gradients of one would be reduced for the other",
            ("optimizer = torch.optim.Adam(set_of_all_parameters)  # each parameter in one optimizer",),
        )


def _shares(optimizer: Optimizer) -> bool:
    own = {id(parameter) for parameter in weights_of(optimizer)}
    others = (other for other in session.optimizers if other is not optimizer)
    return any(id(parameter) in own for other in others for parameter in weights_of(other))


def _broadcast(optimizer: Optimizer) -> None:
    parameters = weights_of(optimizer)
    owners = _owners_of(optimizer)
    known = [module() for module in _owners]
    _owners.extend(weakref.ref(module) for module in owners if not any(module is each for each in known))
    names = {id(value): name for module in owners for name, value in module.named_parameters()}
    _names[optimizer] = {
        id(each): names.get(id(each), f"parameter {place} of {type(optimizer).__name__}")
        for place, each in enumerate(parameters)
    }
    with torch.no_grad():
        distrun_torch.broadcast_parameters([(str(place), each.data) for place, each in enumerate(parameters)], 0)
        for module in owners:
            distrun_torch.broadcast_parameters(list(module.named_buffers()), 0)
    if optimizer.state:
        distrun_torch.broadcast_optimizer_state(optimizer, 0)


def _owners_of(optimizer: Optimizer) -> list[torch.nn.Module]:
    """Return the outermost modules that hold an optimizer's weights, in the order of the weights."""
    places = {id(parameter): place for place, parameter in enumerate(weights_of(optimizer))}
    owners = modules_of(set(places))
    owners.sort(key=lambda module: min(places.get(id(each), len(places)) for each in module.parameters()))
    return owners


def compare() -> None:
    """Refuse to continue if the ranks differ in their places in the loop, their weights or their modules' buffers."""
    session.announce()()
    comparing.compare(lambda: _summed(_parameters()), session.steps)
    comparing.compare(lambda: _summed(_buffers()), session.steps, "buffers", _WHY_BUFFERS)


def _parameters() -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer in session.in_order(session.prepared):
        for parameter in weights_of(optimizer):
            yield _names.get(optimizer, {}).get(id(parameter), "a parameter"), parameter.detach()


def sums_of_weights() -> list[int]:
    """Return numbers that depend on all bits of the weights, and of the buffers of the modules that hold these."""
    buffers = (
        pair for each in session.in_order(session.prepared) for owner in _owners_of(each) for pair in _state_of(owner)
    )
    return _summed([*_parameters(), *buffers])[1]


def _buffers() -> Iterator[tuple[str, torch.Tensor]]:
    return (pair for each in _owners if (module := each()) is not None for pair in _state_of(module))


def _summed(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[list[str], list[int]]:
    """Return the names of tensors, and for each a number that depends on all its bits."""
    pairs = list(named)
    return [name for name, _ in pairs], [_sum_of_bits(tensor) for _, tensor in pairs]


def _state_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and values of the buffers in a module's state, not those that it only caches."""
    cached = {id(inner._buffers[name]) for inner in module.modules() for name in inner._non_persistent_buffers_set}
    for name, buffer in module.named_buffers():
        if id(buffer) not in cached and buffer.layout is torch.strided and not (buffer.is_meta or buffer.is_quantized):
            yield name, buffer.detach()


def _sum_of_bits(tensor: torch.Tensor) -> int:
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    if kind is None or tensor.is_complex():
        tensor, kind = torch.view_as_real(tensor), torch.int32 if tensor.element_size() == 8 else torch.int64
    return int(tensor.contiguous().view(kind).sum(dtype=torch.int64)) if tensor.numel() else 0


# Hooks ----------------------------------------------------------------------------------------------------------------


def _before_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
    trial.before_step(optimizer)
    if not is_shared():
        return
    if session.in_backward:
        refuse(
            "an optimizer's step() is called while backward() is running, as from a hook: the ranks' gradients have "
            "not been averaged yet",
            ("loss.backward()", "optimizer.step()  # after it"),
        )
    if session.has_unshared_gradients:
        _refuse_step()
    has_gradients = any(parameter.grad is not None for parameter in weights_of(optimizer))
    if optimizer not in session.prepared and (has_gradients or arguments or options):
        _refuse_step()
    if not _is_of_torch(optimizer):  # so that any noise it adds to the weights is the same on all ranks
        generators.of_torch.use(own=False)


def _is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _refuse_step() -> None:
    refuse(f"{session.why_not_shared}, so every rank would do the same step on the same data", _STEP_LINES)


def _after_step(optimizer: Optimizer, arguments: Any, options: Any) -> None:
    trial.follow_draws(True)
    if not is_shared() or optimizer not in session.prepared:
        return
    session.steps += 1
    if session.steps == 1 and session.part is not None:
        announce(session.part.sizes, _OF_NUMBERS)
    if session.steps % _COMPARED_EVERY == 1:
        compare()
    if not _is_of_torch(optimizer):
        generators.of_torch.use(own=trial.draws_alone())


def _synchronize(optimizer: Distributed, reducer: GradientReducer) -> None:
    if is_shared() and reducer.is_due:  # gradients without a backward(), which would have announced the place
        session.announce()()
    _plain_synchronize(optimizer, reducer)


def _init(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
    _plain_init(optimizer, *arguments, **options)
    if is_shared() or job.current.rehearsing is not None:
        session.add_optimizer(optimizer)


def _add_param_group(optimizer: Optimizer, group: dict[str, Any]) -> None:
    _plain_add_param_group(optimizer, group)
    session.prepared.discard(optimizer)  # the new weights become rank 0's before the next batch


_plain_init = Optimizer.__init__
_plain_add_param_group = Optimizer.add_param_group
_plain_synchronize = Distributed._synchronize


def install() -> None:
    """Change torch's optimizers, including classes that the script defines."""
    Optimizer.__init__ = _init  # type: ignore[method-assign, assignment]
    Optimizer.add_param_group = _add_param_group  # type: ignore[method-assign, assignment]
    Distributed._synchronize = _synchronize  # type: ignore[method-assign, assignment]
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
