"""DistributedOptimizer: the function that wraps an optimizer, and the checks of its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from distrun.contract.settings import current
from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import Compression, Compressor
from distrun.runtime.collectives.gradient_settings import check_passes
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.operations.reduction import Adasum, Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.torch.gradients.parameters import numbered
from distrun.torch.gradients.planning import Settings
from distrun.torch.gradients.recording import record
from distrun.torch.gradients.reducer import GradientReducer
from distrun.torch.optimizer.distributed import AdasumDistributed, Distributed, wrap
from distrun.torch.tensors import dtype_name

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

_numbers = Numbering()  # optimizers are identified by the order in which they were wrapped, the same on all ranks


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Optimizer:
    """Make `optimizer` use the gradients of all ranks together, and return it.

    When `loss.backward()` returns, gradients are already reduced (as with DDP, and unlike Horovod, which reduces them
    by `step()` or `synchronize()`), so clipping, `GradScaler` and closures need nothing special. The gradients are
    views of the communication buffers. A parameter that has no gradient on any rank keeps None.

    Args:
        optimizer: of any class. It stays the same object, with its state, its schedulers and its hooks, but its class
            becomes a subclass of its class.
        named_parameters: such as `model.named_parameters()`: names for error messages. Must name every parameter.
        compression: see `distrun.runtime.collectives.compressors`.
        backward_passes_per_step: the number of backward passes whose gradients are added up locally before they are
            reduced. `step()` reduces an incomplete sum. See also `no_sync`.
        op: Average, Sum, Min, Max or Product. A rank without a gradient for a parameter counts as zero. With Adasum
            each rank takes a step by its own gradients, which are not reduced, and the steps are combined. Do not scale
            the learning rate by the number of ranks then.
        gradient_predivide_factor: f divides gradients by f before they are summed and by size / f after (Average only).
        num_groups, groups: which gradients travel together: a number of equal groups, or lists of parameters.
            Parameters in none of the lists are bucketed as usual. Without `groups`, buckets have `DISTRUN_BUCKET_BYTES`
            (25 MiB), in order of arrival. The first one has `DISTRUN_FIRST_BUCKET_BYTES` (1 MiB), so that communication
            starts early.
        sparse_as_dense: reduce sparse gradients as dense ones, and make them sparse again for the optimizer. Otherwise
            their indices and values are gathered.
        process_set: the ranks whose gradients are reduced together. On other ranks the optimizer trains alone.

    Parameters may be on the CPU, on this rank's GPU, or some on each. On the GPU the host does not wait: `backward()`
    queues the reductions as torch queues its own computations. Only if a parameter had no gradient on this rank does
    the host wait to learn whether another rank had one. It also waits for sparse gradients, whose number it must know,
    and for gradients that a compressor of your own handles.

    A step can be captured into a CUDA graph by `torch.cuda.graph`. (For callables from
    `torch.cuda.make_graphed_callables`, the gradients are reduced outside of the graph.) Run at least 3 whole steps
    before, on a side stream as torch's documentation says, with the same parameters taking part as later: in the first
    one the ranks plan their buckets and memory is allocated. Then capture on all ranks, and replay the same graphs in
    the same order on all ranks. In the captured step all parameters that need gradients must have one. The graph may
    end after `backward()`. Then `step()`, or `GradScaler.step`, follows each replay.

    If `step` is given a closure, the loss it returns is reduced as well, so that optimizers that use it (LBFGS) do the
    same on all ranks.

    Raises:
        UsageError: an argument is impossible, or the optimizer is wrapped already.
    """
    check_optimizer(optimizer)
    if num_groups and groups is None:
        groups = num_groups
    chosen = current()
    settings = Settings.of(
        op,
        gradient_predivide_factor,
        compression,
        sparse_as_dense,
        process_set,
        groups=groups or 0,
        threshold=chosen.bucket_bytes,
        first=chosen.first_bucket_bytes,
    )
    if chosen.autotune and process_set is global_process_set:
        from distrun.torch.gradients.tuning import own_note  # only here: most jobs do not tune

        settings = replace(settings, note=own_note())
    _check_groups(settings.groups)
    check_passes(backward_passes_per_step)
    names = _names(optimizer, named_parameters)
    for parameter in names:
        dtype_name(parameter)  # refuses what cannot travel
    record()
    number = _numbers.next()
    may_change = world.is_elastic()  # the ranks of the process set
    if process_set.included() is False and not may_change:  # this rank trains alone
        wrap(optimizer, None, process_set, chosen.horovod)
        return optimizer
    if process_set.included() is not False:
        process_set.check_included()
    reducer = None
    if op is Adasum:
        if gradient_predivide_factor != 1.0:
            raise UsageError(
                f"gradient_predivide_factor={gradient_predivide_factor} is for op=Average, and this is op=Adasum: "
                "leave it out"
            )
        more = {"_operation": f"optimizer.{number}.steps", "_compression": compression}
        wrap(optimizer, None, process_set, False, AdasumDistributed, **more)
        return optimizer
    if may_change or process_set.size() > 1:
        reducer = GradientReducer(f"optimizer.{number}", optimizer, names, settings, backward_passes_per_step)
    wrap(optimizer, reducer, process_set, chosen.horovod)
    return optimizer


# The arguments --------------------------------------------------------------------------------------------------------


def check_optimizer(optimizer: object, wrapper: str = "DistributedOptimizer") -> None:
    """Refuse an object that the function `wrapper` cannot wrap.

    Raises:
        UsageError: it is not an optimizer, or it is wrapped already.
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
    """Return the name of each of the optimizer's parameters."""
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
