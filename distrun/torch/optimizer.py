"""DistributedOptimizer: any torch optimizer, fed with the gradients of all ranks."""

from __future__ import annotations

import copyreg
import itertools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives.gradient_settings import check_passes
from distrun.runtime.numbering import Numbering
from distrun.runtime.operations.reduction import Adasum, Average, ReduceOp
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.runtime.settings import current
from distrun.tensor_fusion.low_rank import name_of_rank
from distrun.torch.compression import Compression, Compressor, low_rank, wire_type
from distrun.torch.gradients.adasum import StepCombiner, check_predivide
from distrun.torch.gradients.losses import Loss
from distrun.torch.gradients.parameters import numbered
from distrun.torch.gradients.planning import Settings
from distrun.torch.gradients.recording import record
from distrun.torch.gradients.reducer import GradientReducer
from distrun.torch.tensors import dtype_name

_numbers = Numbering()  # optimizers are told apart by the order in which they were wrapped, the same on all ranks


_LOSSES = "losses"  # in a state_dict
_SYNCHRONIZED_TWICE = (
    "step() after synchronize(), and not within skip_synchronize(): distrun reduces gradients once all the same, "
    "Horovod a second time; write `with optimizer.skip_synchronize(): optimizer.step()`"
)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make `optimizer` use the gradients of all ranks together; returns it.

    When `loss.backward()` returns, gradients are reduced already (as with DDP, unlike Horovod, where they are after
    `step()` or `synchronize()`): clipping, `GradScaler` and closures need nothing special. The gradients are views of
    the communication buffers; a parameter that no rank has a gradient for keeps None.

    Args:
        optimizer: of any class. It stays the same object, with its state, its schedulers and its hooks; its class
            becomes a subclass of its class.
        named_parameters: such as `model.named_parameters()`: names for error messages. Must name every parameter.
        compression: see `distrun.torch.compression`.
        backward_passes_per_step: gradients are added up locally and reduced at the end of every so many backward
            passes. `step()` reduces what is left over. See also `no_sync`.
        op: Average, Sum, Min, Max or Product. Ranks without a gradient for a parameter count as zero. With Adasum each
            rank takes a step by its own gradients, which stay its own, and the steps are combined: scale the learning
            rate by no number of ranks then.
        gradient_predivide_factor: f divides gradients by f before they are summed and by size / f after (Average only).
        num_groups, groups: which gradients travel together: a number of equal groups, or lists of parameters. What is
            in no list is bucketed as usual. Without them, buckets of `DISTRUN_BUCKET_BYTES` (25 MiB), in order of
            arrival; the first one of `DISTRUN_FIRST_BUCKET_BYTES` (1 MiB), so that communication starts early.
        sparse_as_dense: reduce sparse gradients as dense ones; the optimizer gets them sparse. Otherwise their indices
            and values are gathered.
        process_set: the ranks whose gradients are reduced together. On other ranks the optimizer trains alone.

    Parameters may be on the CPU or on this rank's GPU, or some here and some there. On the GPU the host waits for
    nothing: all that `backward()` returns before is queued, as torch queues its own computations. Only where a
    parameter had no gradient on this rank the host has to ask whether another one had. It does wait for sparse
    gradients, whose number it must know, and for those of a compressor of your own.

    A step can be captured into a CUDA graph (`torch.cuda.graph`; of what `torch.cuda.make_graphed_callables` makes, the
    gradients are reduced outside of the graph). Run at least 3 whole steps before, on a side stream as torch's
    documentation says, with the same parameters taking part as later: in the first one the ranks plan their buckets and
    memory is allocated. Then capture on all ranks, and replay on all ranks the same graphs in the same order. In the
    captured step all parameters that need gradients must have one. The graph may end behind `backward()`: `step()`, or
    `GradScaler.step`, then follows each replay.

    If `step` is given a closure, the loss it returns is reduced as well, so that optimizers which look at it (LBFGS) do
    the same on all ranks.

    Raises:
        UsageError: an argument cannot be; the optimizer is wrapped already.
    """
    check_optimizer(optimizer)
    if num_groups and groups is None:
        groups = num_groups
    chosen = current()
    settings = Settings(
        op,
        gradient_predivide_factor,
        _wire_of(compression),
        sparse_as_dense,
        process_set,
        None if wire_type(compression) is not None or low_rank(compression) else compression,
        groups or 0,
        chosen.bucket_bytes,
        chosen.first_bucket_bytes,
    )
    if chosen.autotune and process_set is global_process_set:
        from distrun.torch.gradients.tuning import own_note  # only here: other jobs tune nothing

        settings = replace(settings, note=own_note())
    _check_groups(settings.groups)
    check_passes(backward_passes_per_step)
    names = _names(optimizer, named_parameters)
    for parameter in names:
        dtype_name(parameter)  # refuses what cannot travel
    record()
    number = _numbers.next()
    may_change = world.is_elastic()  # who belongs to the process set, and how many
    if process_set.included() is False and not may_change:  # this rank trains alone
        return _wrap(optimizer, None, process_set, chosen.horovod)
    if process_set.included() is not False:
        process_set.check_included()
    reducer = None
    if op is Adasum:
        check_predivide(gradient_predivide_factor)
        combiner = StepCombiner(f"optimizer.{number}.steps", compression, process_set)
        return _wrap(optimizer, None, process_set, False, AdasumDistributed, _combiner=combiner)
    if may_change or process_set.size() > 1:
        reducer = GradientReducer(f"optimizer.{number}", optimizer, names, settings, backward_passes_per_step)
    return _wrap(optimizer, reducer, process_set, chosen.horovod)


def _wire_of(compression: Compressor) -> str:
    rank = low_rank(compression)
    return name_of_rank(rank) if rank else wire_type(compression) or ""


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)


# The arguments --------------------------------------------------------------------------------------------------------


def check_optimizer(optimizer: object, wrapper: str = "DistributedOptimizer") -> None:
    """Refuse what the function `wrapper` cannot wrap.

    Raises:
        UsageError: it is no optimizer, or wrapped already.
    """
    if isinstance(optimizer, Distributed):
        raise UsageError(f"this {type(optimizer).__name__} is a DistributedOptimizer already: wrap an optimizer once")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"{wrapper} wraps a torch.optim.Optimizer, not {type(optimizer).__name__}: give it the "
            "optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1)"
        )


def _check_groups(groups: object) -> None:
    if isinstance(groups, int):
        if groups < 0:
            raise UsageError(f"groups={groups} must not be negative: give a number of groups, or lists of parameters")
        return
    seen: set[int] = set()
    if not isinstance(groups, Sequence) or not all(isinstance(group, Sequence) for group in groups):
        raise UsageError(f"groups={groups!r} must be a number of groups, or a list of lists of parameters")
    for tensor in itertools.chain.from_iterable(groups):
        if not isinstance(tensor, Tensor) or id(tensor) in seen:
            raise UsageError("groups must list parameters, each at most once")
        seen.add(id(tensor))


def _names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The name of each of the optimizer's parameters."""
    if named_parameters is None:
        return {parameter: name for name, parameter in numbered(optimizer)}
    names: dict[Tensor, str] = {}
    seen: set[str] = set()
    for pair in named_parameters:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UsageError(
                "named_parameters must give pairs of a name and a parameter, as model.named_parameters() does"
            )
        name, parameter = pair
        if name in seen:
            raise UsageError(f"named_parameters gives the name {name!r} twice: names must be unique")
        seen.add(name)
        names.setdefault(parameter, name)
    unnamed = [name for name, parameter in numbered(optimizer) if parameter not in names]
    if unnamed:
        raise UsageError(
            f"named_parameters leaves {len(unnamed)} of the optimizer's parameters without a name, the first being "
            f"{unnamed[0]}: give all of them, or leave the argument out"
        )
    return names


# The wrapping ---------------------------------------------------------------------------------------------------------


def _wrap(
    optimizer: torch.optim.Optimizer,
    reducer: GradientReducer | None,
    process_set: ProcessSet,
    fills: bool,
    kind: type[Distributed] | None = None,
    **more: Any,
) -> Distributed:
    plain = type(optimizer)
    wrapped = types.new_class(plain.__name__, (kind or Distributed, plain))
    wrapped.__qualname__, wrapped.__module__, wrapped.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    vars(optimizer).update(
        _reducer=reducer,
        _skips=False,
        _is_synchronized=False,
        _complete={},
        _fills=fills,
        process_set=process_set,
        **more,
    )
    step = vars(optimizer).get("step")  # a scheduler made before has put its own in front of the class's
    optimizer.__class__ = wrapped
    assert isinstance(optimizer, Distributed)
    if step is not None and (reducer is not None or kind is not None):
        optimizer.step = _in_front(weakref.ref(optimizer), step)  # type: ignore[method-assign]
    return optimizer


def extend(optimizer: Distributed, kind: type[Distributed], step: Callable[..., Any] | None, **more: Any) -> None:
    """Mix a subclass of `Distributed` into a wrapped optimizer instead, with these attributes.

    Args:
        optimizer: what `DistributedOptimizer` has returned.
        kind: the subclass, which extends `_step`.
        step: what stood in front of the class's own `step` before it was wrapped; see `_wrap`.
        more: the attributes.
    """
    wrapped = type(optimizer)
    optimizer.__class__ = types.new_class(wrapped.__name__, (kind, wrapped.__bases__[1]))
    for name in ("__qualname__", "__module__", "__doc__"):
        setattr(optimizer.__class__, name, getattr(wrapped, name))
    vars(optimizer).update(more)
    if step is not None:
        optimizer.step = _in_front(weakref.ref(optimizer), step)  # type: ignore[method-assign]


def _in_front(optimizer: weakref.ref[Distributed], step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what `Distributed.step` does, for a `step` that is an attribute of the instance."""

    @wraps(step)  # with the marks the scheduler has left on it
    def distributed_step(closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        alive = optimizer()
        assert alive is not None
        return alive._step(step, closure, options)

    return distributed_step


class Distributed(torch.optim.Optimizer):
    """The class that `DistributedOptimizer` mixes into an optimizer's; its `GradientReducer` does the work."""

    _reducer: GradientReducer | None  # None in a world of one that stays so
    _skips: bool
    _complete: dict[int, dict[str, Tensor]]
    """Within `complete_state`: the losses of the parameters, by place."""
    _is_synchronized: bool
    """Whether `synchronize` was called since the last step."""
    _fills: bool
    """Whether a parameter without a gradient gets one of zeros, as with Horovod: momentum and decay go on then."""
    process_set: ProcessSet

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update the parameters, after reducing the gradients in so far as `backward` has not."""
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
        """Make sure that the gradients are reduced. They are after `backward()`, unless it was one of several to
        accumulate."""
        if self._reducer is not None:
            self._is_synchronized = True
            self._synchronize(self._reducer)

    def _synchronize(self, reducer: GradientReducer) -> None:
        if reducer.is_due:
            reducer.complete()
        if self._fills:
            self._fill()

    def _fill(self) -> None:
        for parameter in _parameters(self):
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step()` reduces nothing. For Horovod's `synchronize()`, then clipping, then `step()`."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def no_sync(self) -> AbstractContextManager[None]:
        """Within this context `backward()` adds gradients up on this rank and reduces nothing; a later one reduces the
        sum."""
        return nullcontext() if self._reducer is None else self._reducer.suppress()

    @contextmanager
    def complete_state(self) -> Iterator[None]:
        """Within this context `state_dict()` has also what compression has taken from the gradients and is still to be
        made up for (int4, PowerSGD), averaged over the ranks, so that any number of ranks can load it.

        All ranks enter it together. `distrun.checkpoint` does so by itself. A `state_dict()` without it is that of the
        plain optimizer: what loads it makes up for nothing.

        Raises:
            CollectiveError: as `distrun.torch.allreduce` raises.
        """
        losses = {} if self._reducer is None else self._reducer.merged_losses()
        self._complete = {
            number: {key: value for key, value in losses[parameter]._asdict().items() if value is not None}
            for number, parameter in enumerate(_parameters(self))
            if parameter in losses
        }
        try:
            yield
        finally:
            self._complete = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the plain optimizer's; see also `complete_state`."""
        state: dict[str, Any] = super().state_dict()
        return {**state, _LOSSES: self._complete} if self._complete else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` of this or of the plain optimizer has returned."""
        losses = state_dict.get(_LOSSES)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _LOSSES})
        if losses is not None and self._reducer is not None:
            parameters = list(_parameters(self))
            self._reducer.load_losses({parameters[number]: Loss(**loss) for number, loss in losses.items()})

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce at the end of every so many backward passes."""
        check_passes(passes)
        if self._reducer is not None:
            self._reducer.passes_per_reduction = passes

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks the same; their gradients are reduced from then on."""
        super().add_param_group(param_group)
        if self._reducer is not None:
            self._reducer.follow_parameters()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what a pickle gives back, is the plain optimizer: the connection to the other ranks is not
        copied."""
        plain = type(self).__bases__[1]
        return copyreg.__newobj__, (plain,), super().__getstate__()  # type: ignore[attr-defined]


class AdasumDistributed(Distributed):
    """The class for op=Adasum: `backward` and the gradients are this rank's own affair."""

    _combiner: StepCombiner

    def _step(self, plain_step: Callable[..., Any], closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        arguments = () if closure is None else (closure,)
        if self.process_set.included() is False or self.process_set.size() == 1:
            return plain_step(*arguments, **options)
        parameters = [parameter for parameter in _parameters(self) if parameter.requires_grad]
        return self._combiner.step(parameters, lambda: plain_step(*arguments, **options))

    def skip_synchronize(self) -> Any:
        """Refuse: with op=Adasum nothing is reduced before `step()`, and there is nothing to skip.

        Raises:
            UsageError: always.
        """
        raise UsageError("skip_synchronize() has no meaning with op=Adasum, which combines steps: leave it out")


def _reducing(closure: Callable[[], Any], reducer: GradientReducer) -> Callable[[], Any]:
    def evaluate() -> Any:
        reducer.forget()
        loss = closure()
        if reducer.is_due:
            reducer.complete()
        return reducer.reduce_loss(loss)

    return evaluate
