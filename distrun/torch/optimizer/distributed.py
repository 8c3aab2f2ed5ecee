"""The class that is mixed into the class of a wrapped optimizer, and the functions that mix it in."""

from __future__ import annotations

import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import Compressor
from distrun.runtime.collectives.gradient_settings import check_passes
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.operations.reduction import Adasum
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.torch.gradients.reducer import GradientReducer
from distrun.torch.reductions import grouped_allreduce

_RESIDUALS = "losses"  # in a state_dict
_SYNCHRONIZED_TWICE = (
    "step() after synchronize(), and not within skip_synchronize(): distrun reduces gradients once all the same, "
    "Horovod a second time; write `with optimizer.skip_synchronize(): optimizer.step()`"
)


class Distributed(torch.optim.Optimizer):
    """The class that `DistributedOptimizer` mixes into an optimizer's class. Its `GradientReducer` does the work."""

    _reducer: GradientReducer | None  # None in a world of one that stays so
    _skips = False
    _complete: dict[int, dict[str, Tensor]] | None = None
    """Within `complete_state`: the residuals of the parameters, by place."""
    _is_synchronized = False
    """Whether `synchronize` was called since the last step."""
    _fills: bool
    """Whether a parameter without a gradient gets one of zeros, as with Horovod, so that momentum and weight decay
    apply to it."""
    process_set: ProcessSet

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update the parameters, after reducing the gradients that `backward` has not reduced."""
        return self._step(super().step, closure, options)

    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not run the step hooks twice

    def _step(self, plain_step: Callable[..., Any], closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        reducer = self._reducer
        if reducer is None:
            return plain_step(closure, **options) if closure is not None else plain_step(**options)
        if closure is not None:
            result = plain_step(_reducing(closure, reducer), **options)
        else:
            if not self._skips:
                if self._is_synchronized:
                    warnings.warn(_SYNCHRONIZED_TWICE, stacklevel=3)
                self._synchronize(reducer)
            result = plain_step(**options)
        reducer.forget(are_used=True)
        self._is_synchronized = False
        if reducer.tuner is not None:
            reducer.tuner.step_ended()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        if self._reducer is not None:
            self._reducer.abandon()
        super().zero_grad(set_to_none)
        if self._reducer is not None:
            self._reducer.forget()

    def synchronize(self) -> None:
        """Make sure that the gradients are reduced. After `backward()` they are, unless it was one of several passes to
        accumulate."""
        if self._reducer is not None:
            self._is_synchronized = True
            self._synchronize(self._reducer)

    def _synchronize(self, reducer: GradientReducer) -> None:
        if reducer.is_due:
            reducer.complete()
        for parameter in parameters_of(self) if self._fills else ():
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make `step()` reduce nothing within this context: for Horovod's order of `synchronize()`, clipping,
        `step()`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def no_sync(self) -> AbstractContextManager[None]:
        """Make `backward()` only accumulate gradients on this rank within this context. A later one reduces the sum."""
        return nullcontext() if self._reducer is None else self._reducer.suppress()

    @contextmanager
    def complete_state(self) -> Iterator[None]:
        """Make `state_dict()` include the residuals of compression (int4, PowerSGD) within this context, averaged over
        the ranks, so that any number of ranks can load them.

        All ranks enter it together. `distrun.checkpoint` does so by itself. Without it, `state_dict()` returns the
        state of the plain optimizer, and an optimizer that loads it has no residuals.

        Raises:
            CollectiveError: as `distrun.torch.allreduce` raises.
        """
        residuals = {} if self._reducer is None else self._reducer.merged_residuals()
        self._complete = {
            number: {key: value for key, value in residuals[parameter]._asdict().items() if value is not None}
            for number, parameter in enumerate(parameters_of(self))
            if parameter in residuals
        }
        try:
            yield
        finally:
            self._complete = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the plain optimizer; see also `complete_state`."""
        state: dict[str, Any] = super().state_dict()
        return {**state, _RESIDUALS: self._complete} if self._complete else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state that `state_dict` of this or of the plain optimizer returned."""
        residuals = state_dict.get(_RESIDUALS)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _RESIDUALS})
        if residuals is not None and self._reducer is not None:
            parameters = list(parameters_of(self))
            self._reducer.load_residuals(
                {parameters[number]: Residual(**residual) for number, residual in residuals.items()}
            )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce once in `passes` backward passes, at the end of the last one."""
        check_passes(passes)
        if self._reducer is not None:
            self._reducer.passes_per_reduction = passes

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, the same on all ranks. Later backward passes reduce their gradients as well."""
        super().add_param_group(param_group)
        if self._reducer is not None:
            self._reducer.follow_parameters()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle as the plain optimizer: the connection to the other ranks is not copied. (Not by
        `copyreg.__newobj__`, which pickle refuses for a class that is not the object's own.)"""
        plain = type(self).__bases__[1]
        return object.__new__, (plain,), super().__getstate__()


class AdasumDistributed(Distributed):
    """The class for op=Adasum: each rank takes a step by its own gradients, and the ranks combine their steps.

    The steps are combined rather than the gradients, as in Horovod, so that adaptive optimizers scale each rank's
    gradient by itself. See `distrun.runtime.backends.adasum` for the formula.
    """

    _operation: str
    """How the ranks match the operations."""
    _compression: Compressor

    def _step(self, plain_step: Callable[..., Any], closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        arguments = () if closure is None else (closure,)
        if self.process_set.included() is False or self.process_set.size() == 1:
            return plain_step(*arguments, **options)
        parameters = [parameter for parameter in parameters_of(self) if parameter.requires_grad]
        starts = [parameter.detach().clone() for parameter in parameters]
        result = plain_step(*arguments, **options)
        with torch.no_grad():
            deltas = [parameter.detach() - start for parameter, start in zip(parameters, starts, strict=True)]
            combined = grouped_allreduce(
                deltas, name=self._operation, compression=self._compression, op=Adasum, process_set=self.process_set
            )
            for parameter, start, delta in zip(parameters, starts, combined, strict=True):
                parameter.copy_(start.add_(delta))
        return result

    def skip_synchronize(self) -> Any:
        """Refuse, since with op=Adasum nothing is reduced before `step()`.

        Raises:
            UsageError: always.
        """
        raise UsageError("skip_synchronize() has no meaning with op=Adasum, which combines steps: leave it out")


def _reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    evaluations = itertools.count()

    def evaluate() -> Any:
        if next(evaluations):  # the first may come after a backward pass of its own, and compute nothing
            reducer.forget()
        loss = closure()
        if reducer.is_due:
            reducer.complete()
        return reducer.reduce_loss(loss)

    return evaluate


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of all groups of an optimizer."""
    return itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)


# The wrapping --------------------------------------------------------------------------------------------------------


def wrap(
    optimizer: torch.optim.Optimizer,
    reducer: GradientReducer | None,
    process_set: ProcessSet,
    fills: bool,
    kind: type[Distributed] | None = None,
    **more: Any,
) -> Distributed:
    """Mix `Distributed` into the class of `optimizer`, which stays the same object, and return it.

    Args:
        optimizer: a plain optimizer.
        reducer: reduces its gradients, or None if this rank trains alone.
        process_set: the ranks whose gradients are reduced together.
        fills: whether a parameter without a gradient gets one of zeros.
        kind: a subclass to mix in instead.
        more: attributes for that subclass.
    """
    is_changed = reducer is not None or kind is not None
    step = vars(optimizer).get("step") if is_changed else None  # a scheduler made before has put its own there
    more |= {"_reducer": reducer, "_fills": fills, "process_set": process_set}
    mix_in(optimizer, kind or Distributed, type(optimizer), step, **more)
    assert isinstance(optimizer, Distributed)
    return optimizer


def mix_in(
    optimizer: torch.optim.Optimizer,
    kind: type[Distributed],
    plain: type[torch.optim.Optimizer],
    step: Callable[..., Any] | None,
    **more: Any,
) -> None:
    """Make the class of an optimizer one that looks like `plain`, with `kind` mixed in.

    Args:
        optimizer: a plain optimizer, or one that `DistributedOptimizer` returned.
        kind: the class to mix in, instead of the one that is.
        plain: the class of the plain optimizer.
        step: the `step` that the instance had before it was wrapped, to be taken by `kind`. See `wrap`.
        more: attributes for the instance.
    """
    wrapped = types.new_class(plain.__name__, (kind, plain))
    wrapped.__qualname__, wrapped.__module__, wrapped.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    vars(optimizer).update(more)
    optimizer.__class__ = wrapped
    if step is not None:
        assert isinstance(optimizer, Distributed)
        optimizer.step = _in_front(weakref.ref(optimizer), step)  # type: ignore[method-assign]


def _in_front(optimizer: weakref.ref[Distributed], step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the equivalent of `Distributed.step` for a `step` that is an attribute of the instance."""

    @wraps(step)  # keeps the attributes that the scheduler has set on it
    def distributed_step(closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        alive = optimizer()
        assert alive is not None
        return alive._step(step, closure, options)

    return distributed_step
