"""DiLoCo and local SGD: the ranks of a host train together, and hosts average their parameters every few steps.

See `distrun.methods.diloco` for the algorithm and its sources.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.methods.diloco.fragments import Fragment
from distrun.methods.diloco.merging import merge
from distrun.methods.diloco.optimizer import OuterOptimizer
from distrun.methods.diloco.parameters import start_average
from distrun.methods.diloco.settings import OuterSettings
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.handle import AnyHandle
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.process_sets.process_sets import host_set
from distrun.torch import cuda, tensors as storage
from distrun.torch.copies import broadcast_
from distrun.torch.elastic.optimizers import OptimizerStateHandler
from distrun.torch.elastic.state import get_handler_registry
from distrun.torch.operations import prepare, request_of
from distrun.torch.optimizer.distributed import Distributed, mix_in, parameters_of
from distrun.torch.optimizer.wrapping import DistributedOptimizer, check_optimizer

__all__ = ["DiLoCo", "LocalSGD"]

_KEY = "outer_steps"  # in the optimizer's state_dict


def DiLoCo(  # noqa: N802 - the name of the algorithm
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    every: int = 50,
    outer_lr: float = 0.7,
    momentum: float = 0.9,
    wire: str | None = "int4",
    overlap: bool = True,
    fragments: int = 4,
    warmup: int = 0,
    backward_passes_per_step: int = 1,
    sparse_as_dense: bool = False,
) -> Any:
    """Make each host train by itself with `optimizer`, and exchange updates with the others every `every` steps, and
    return it.

    At each step the ranks of a host reduce their gradients, as with a `DistributedOptimizer` of their process set.
    After every `every` steps each parameter takes an outer step: the distance by which the hosts have moved it since
    its last outer step is averaged over all ranks of the job, so that a host is weighted by its number of ranks, and
    the common starting point moves by that average, with Nesterov momentum. On a single host the outer steps are the
    same, but nothing travels for them.

    All ranks begin with the same parameters (`broadcast_parameters`), and make the same number of steps. Their
    parameters differ between hosts until `optimizer.merge()`. All ranks call it at the end of training, and before the
    model is evaluated or saved.

    Args:
        optimizer: the inner optimizer, of any class, with all parameters that it will have. They have real
            floating-point types, and are all on the CPU or all on this rank's GPU. It stays the same object.
        named_parameters: such as `model.named_parameters()`: names for error messages. Must name every parameter.
        every: inner steps between two outer steps of the same parameter.
        outer_lr, momentum: the learning rate and the Nesterov momentum of outer steps.
        wire: the type in which updates travel between hosts: "int4" (with error feedback, as `Compression.int4`),
            "int8", "bfloat16" or "float16". None: the job's wire type.
        overlap: whether training continues while updates travel, for up to 10 steps, whose own updates are kept. False:
            it waits, and all hosts have the same bits after an outer step.
        fragments: the number of parts into which the parameters are divided. The parts take turns, so that fewer bytes
            travel at a time and the ranks wait less for them.
        warmup: the number of steps at the beginning that reduce the gradients of all ranks, since rare exchanges cost
            the most then.
        backward_passes_per_step, sparse_as_dense: see `DistributedOptimizer`.

    The state_dict has the outer steps as well. In an elastic job give the optimizer to a `TorchState`: whenever ranks
    have come or gone, the remaining ranks merge. If a host is lost, so are its updates since its last exchange.

    With a float16 `GradScaler` each host has a scale of its own. A step that it skips counts all the same, so that
    hosts come to their outer steps together.

    Raises:
        UsageError: an argument is impossible, there are fewer parameters than fragments, or the optimizer is wrapped
            already.
    """
    check_optimizer(optimizer, "DiLoCo")
    settings = OuterSettings(every, outer_lr, momentum, wire or "", bool(overlap), fragments, warmup)
    parameters = _TorchParameters(optimizer)
    hosts = host_set()
    outer = OuterOptimizer(settings, parameters, hosts)
    step = vars(optimizer).get("step")
    unscales = not getattr(optimizer, "_step_supports_amp_scaling", False)
    wrapped: Any = DistributedOptimizer(
        optimizer,
        named_parameters,
        backward_passes_per_step=backward_passes_per_step,
        sparse_as_dense=sparse_as_dense,
        process_set=global_process_set if warmup else hosts,
    )
    # Before the first reduction: ranks with different `warmup` would reduce over different ranks, and wait for ever.
    if wrapped._reducer is not None:
        wrapped._reducer.before_agreement = outer.compare_settings
    plain = type(wrapped).__bases__[1]
    mix_in(wrapped, OuterDistributed, plain, step, _outer=outer, _hosts=hosts, _unscales=unscales)
    return wrapped


def LocalSGD(  # noqa: N802 - the name of the algorithm
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    every: int = 50,
    wire: str | None = None,
    warmup: int = 0,
) -> Any:
    """Make each host train by itself with `optimizer`, and average the hosts' parameters after every `every` steps.

    This is `DiLoCo` with outer_lr=1, without momentum, fragments and overlap. See there for the arguments.
    """
    return DiLoCo(optimizer, named_parameters, every, 1.0, 0.0, wire, overlap=False, fragments=1, warmup=warmup)


class OuterDistributed(Distributed):
    """The class that `DiLoCo` mixes into an optimizer's class."""

    _outer: OuterOptimizer
    _hosts: ProcessSet
    _unscales: bool
    """Whether the inner optimizer relies on a `GradScaler` to unscale gradients and to skip steps that are not
    finite."""
    _step_supports_amp_scaling = True
    """Makes a `GradScaler` call `step` even if gradients are not finite, with `grad_scale` and `found_inf`: every step
    must be counted."""

    def _step(self, plain_step: Callable[..., Any], closure: Callable[[], Any] | None, options: dict[str, Any]) -> Any:
        names = ("grad_scale", "found_inf") if self._unscales else ()
        scaling = {name: vars(self).pop(name) for name in names if name in vars(self)}
        try:
            with torch.no_grad():
                self._outer.begin_step()
                is_finite = not scaling or self._unscale(**scaling)
            result = super()._step(plain_step, closure, options) if is_finite else None
            with torch.no_grad():
                self._outer.end_step()
        finally:
            vars(self).update(scaling)
        self._follow_warmup()
        return result

    def _unscale(self, grad_scale: Tensor | None, found_inf: Tensor) -> bool:
        """Unscale the gradients, as a `GradScaler` does before other optimizers' steps. Return whether to take the
        step."""
        if found_inf.item():
            return False
        if grad_scale is not None:
            factor = grad_scale.double().reciprocal().float()
            for parameter in parameters_of(self):
                if parameter.grad is not None:
                    parameter.grad.mul_(factor.to(parameter.grad.device))
        return True

    def _follow_warmup(self) -> None:
        if self.process_set is not self._hosts and self._outer.step >= self._outer.settings.warmup:
            self.process_set = self._hosts
            if self._reducer is not None:
                self._reducer.reduce_over(self._hosts)

    @torch.no_grad()
    def merge(self) -> None:
        """Replace the parameters of all ranks by their average. All ranks call it at the same step.

        Raises:
            CollectiveError: a rank is gone.
        """
        merge(self._outer)
        self._follow_warmup()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the state of the outer steps under "outer_steps"."""
        return {**super().state_dict(), _KEY: self._outer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer, or of the plain optimizer.

        Raises:
            UsageError: the outer steps belong to other parameters.
        """
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
        if _KEY in state_dict:
            self._outer.load_state_dict(state_dict[_KEY])
            self._follow_warmup()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse, since the parameters were divided into fragments when the optimizer was wrapped.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "DiLoCo divides the parameters when it wraps an optimizer: add_param_group() before, not after it"
        )


class _TorchParameters:
    """The parameters of an optimizer. See `distrun.methods.diloco.parameters.Parameters`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._tensors = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
        for parameter in self._tensors:
            storage.dtype_name(parameter)  # refuses what cannot travel
            if not parameter.is_floating_point():
                raise UsageError(f"DiLoCo averages real numbers, and a parameter is of {parameter.dtype}: leave it out")
        kinds = {cuda.kind(parameter) for parameter in self._tensors}
        if len(kinds) > 1:
            raise UsageError("DiLoCo takes parameters that are all on the CPU or all on the GPU: move some of them")
        self._kind = next(iter(kinds), cuda.CPU)
        is_double = any(parameter.dtype is torch.float64 for parameter in self._tensors)
        self._dtype = torch.float64 if is_double else torch.float32

    @property
    def piece(self) -> int:
        """Return how many elements to handle at a time: all on the GPU, by one kernel; on the CPU as many as fit into
        the caches of the cores that run torch's threads."""
        return torch.get_num_threads() << 16 if self._kind == cuda.CPU else 1 << 60

    @property
    def sizes(self) -> Sequence[int]:
        return [parameter.numel() for parameter in self._tensors]

    def zeros(self, count: int) -> Tensor:
        return storage.empty(self._kind, count, self._dtype).zero_()

    def room(self, count: int) -> Tensor:
        if self._kind == cuda.CUDA:
            return storage.empty(self._kind, count, self._dtype)
        return storage.tensor_of(storage.empty_array(count, self._dtype), self._dtype, (-1,))

    def read(self, fragment: Fragment, out: Tensor) -> None:
        torch._foreach_copy_(self._views(fragment, out), self._of(fragment))

    def write(self, fragment: Fragment, flat: Tensor) -> None:
        torch._foreach_copy_(self._of(fragment), self._views(fragment, flat))

    def add(self, fragment: Fragment, flat: Tensor) -> None:
        torch._foreach_add_(self._of(fragment), self._views(fragment, flat))

    def subtract(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        torch.sub(left, right, out=out)

    def average(self, fragment: Fragment, flat: Tensor, call: Call, feedback: Feedback) -> AnyHandle:
        array = storage.flat(flat)
        handle = prepare(request_of(call, [flat]), [array], [array])
        return start_average(handle, fragment, feedback)

    def broadcast(self, flat: Tensor, root_rank: int, name: str) -> None:
        broadcast_(flat, root_rank, name)

    def digest(self, flat: Tensor) -> int:
        elements: Any = flat.cpu().numpy()
        return zlib.crc32(elements)

    def _of(self, fragment: Fragment) -> list[Tensor]:
        return self._tensors[fragment.places.start : fragment.places.stop]

    def _views(self, fragment: Fragment, flat: Tensor) -> list[Tensor]:
        return [part.view(own.shape) for part, own in zip(fragment.parts(flat), self._of(fragment), strict=True)]


class OuterStateHandler(OptimizerStateHandler):
    """The handler of a DiLoCo optimizer in a `TorchState`: hosts differ, and the updates of each are kept."""

    value: OuterDistributed

    def is_usable(self) -> bool:
        """Return True: hosts are at different steps anyway."""
        return True

    @torch.no_grad()
    def adopt(self, description: Any) -> None:
        """Keep this host's updates since the last exchange, and prepare to load the donor's state."""
        self.value._outer.keep()
        super().adopt(description)

    def restore(self) -> None:
        """Return to the saved copy."""
        self.value._outer.forget()
        super().restore()

    def meet(self) -> None:
        """Average the hosts' parameters."""
        self.value.merge()


get_handler_registry().insert(0, (OuterDistributed, OuterStateHandler))
