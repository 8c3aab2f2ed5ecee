"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.operations.reduction import Sum
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.torch.operations import allreduce_in_place, run

_numbers = Numbering()  # a layer's name is the order of its making, the same on all ranks


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with the mean and variance over the batches of all ranks, as one process would compute them.

    For inputs of shape (N, C) to (N, C, D, H, W), on the CPU or on this rank's GPU. N may differ between the ranks, and
    be 0. In half precision the statistics are computed in float32, as torch does. Running statistics are the same on
    all ranks. Gradients of weight and bias are this rank's own, for the optimizer to reduce.

    A layer costs one allreduce of 2C + 1 numbers in `forward` and one of 2C in `backward`, and the ranks wait for one
    another in both. So all ranks must run both equally often and in the same order, even with an empty batch. Each
    layer has its own operations, so ranks in different layers end in a stall report that names the layers. Evaluation
    mode communicates nothing.

    The state_dict is the same as that of torch's BatchNorm.
    """

    process_set: ProcessSet

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer. All ranks make their layers in the same order and of the same sizes.

        Args:
            num_features: C, the extent of dimension 1.
            eps: added to the variance.
            momentum: the weight of a batch in the running statistics. None: they are the mean over all batches.
            affine: whether the layer has weight and bias.
            track_running_stats: whether the layer has running statistics, which evaluation mode uses.
            process_set: the ranks whose batches are normalised together. On other ranks the layer behaves like torch's.
            device: the device of weight, bias and running statistics.
            dtype: their dtype.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self._join(process_set)

    def _join(self, process_set: ProcessSet) -> None:
        self.process_set = process_set
        self._name = f"sync_batch_norm.{_numbers.next()}"

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set) -> Any:
        """Replace the batch normalisations in a module by synchronised ones. Call it on all ranks alike.

        Args:
            module: any module. All `BatchNorm1d`, `2d`, `3d` and `SyncBatchNorm` of torch in it are replaced.
            process_set: the ranks whose batches are normalised together.

        Returns:
            `module`, or its replacement if it is a batch normalisation itself. The new layers share the old ones'
            parameters, buffers and hooks, and keep their training or evaluation mode.

        Raises:
            UsageError: a lazy layer does not know its number of features yet.
        """
        replaced: dict[torch.nn.Module, SyncBatchNorm] = {}  # so that one layer in two places stays one layer

        def converted(old: torch.nn.Module) -> torch.nn.Module:
            if not isinstance(old, _BatchNorm) or isinstance(old, cls):
                return old
            if old not in replaced:
                if isinstance(old, LazyModuleMixin) and old.has_uninitialized_params():
                    raise UsageError(
                        f"{old} does not know its number of features yet: convert it after a first forward pass"
                    )
                new = replaced[old] = cls.__new__(cls)
                vars(new).update(vars(old))
                new._join(process_set)
            return replaced[old]

        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if child is not None:
                    parent._modules[name] = converted(child)
        return converted(module)

    def _check_input_dim(self, input: Tensor) -> None:
        if not 2 <= input.dim() <= 5:
            raise UsageError(
                f"SyncBatchNorm takes an input of 2 to 5 dimensions, the channels being the second, not one of shape "
                f"{tuple(input.shape)}"
            )
        if input.shape[1] != self.num_features:
            raise UsageError(
                f"SyncBatchNorm({self.num_features}) takes an input of {self.num_features} channels in dimension 1, "
                f"not one of shape {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input. In training mode all ranks call it."""
        if not self.training or self.process_set.included() is False or self.process_set.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        running = None
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            running = self.running_mean, self.running_var, momentum
        call = Call("allreduce", self._name, Sum, process_set=self.process_set)
        return _normalise(input, self.weight, self.bias, self.eps, running, call)


@_disable_dynamo  # unlike `torch.compiler.disable`, which takes seconds where nothing is compiled
def _normalise(*arguments: Any) -> Tensor:
    normalised: Tensor = _Normalisation.apply(*arguments)  # type: ignore[no-untyped-call]
    return normalised


class _Normalisation(torch.autograd.Function):
    """Normalisation by the statistics of the batches of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, running: Any, call: Call
    ) -> Tensor:
        count, mean, variance = _statistics(input, call.named("forward"))
        if running is not None:
            running_mean, running_variance, momentum = running
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            running_variance.lerp_(unbiased.to(running_variance.dtype), momentum)
        exact = _exact(input.dtype)
        weight, bias = [None if each is None else each.to(exact) for each in (weight, bias)]
        mean, variance = mean.to(exact), variance.to(exact)
        ctx.save_for_backward(input, weight, count, mean, variance)
        ctx.eps, ctx.call = eps, call.named("backward")
        return torch.nn.functional.batch_norm(input, mean, variance, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled, of_weight, of_bias = _local_gradients(ctx, gradient)
        of_input = _input_gradient(ctx, gradient, scaled, of_weight, of_bias) if ctx.needs_input_grad[0] else None
        _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        return of_input, of_weight if needs_weight else None, of_bias if needs_bias else None, None, None, None


def _exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which the statistics of elements of `dtype` are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _statistics(input: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return, in float64, the number of elements per channel over all ranks, their mean and their (biased) variance.

    In float64 the sums and the sums of squares are exact enough to reduce both in one operation. Nothing is copied to
    the host, so it does not wait.
    """
    channels = input.shape[1]
    sums = torch.zeros(2 * channels + 1, dtype=torch.float64, device=input.device)
    count = input.numel() // channels
    if count:
        exact = _exact(input.dtype)
        unused = torch.zeros(channels, dtype=exact, device=input.device)  # the results take its dtype
        mean, variance = torch.batch_norm_update_stats(input, unused, unused, 0.0)
        mean = mean.double()
        torch.stack([mean, variance.double() + mean * mean], out=sums[:-1].view(2, -1)).mul_(count)
        sums[-1] = count
    run(allreduce_in_place([sums], call)).wait()
    total = sums[-1].clamp(min=1)
    mean, square = (sums[:-1] / total).view(2, -1)
    return total, mean, (square - mean * mean).clamp_(min=0)


def _local_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of input, weight and bias that need no other ranks.

    The gradient of the input is the one for constant statistics, or None if it would be rounded or is not needed.
    """
    input, weight, _, mean, variance = ctx.saved_tensors
    if not input.numel():
        return None, torch.zeros_like(mean), torch.zeros_like(mean)
    is_wanted = ctx.needs_input_grad[0] and input.dtype is mean.dtype
    unused = mean.new_empty(0)  # as torch passes in evaluation mode. None is an error on CUDA
    gradients: tuple[Tensor | None, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        gradient, input, weight, mean, variance, unused, unused, False, ctx.eps, [is_wanted, True, True]
    )
    return gradients


def _input_gradient(ctx: Any, gradient: Tensor, scaled: Tensor | None, of_weight: Tensor, of_bias: Tensor) -> Tensor:
    """Return the gradient of the input, from the results of `_local_gradients`:
    scale * (gradient - mean of gradients - normalised input * mean of (gradient * normalised input))."""
    input, weight, count, mean, variance = ctx.saved_tensors
    sums = torch.cat([of_weight, of_bias])
    run(allreduce_in_place([sums], ctx.call)).wait()
    mean_product, mean_gradient = (sums / count.to(sums.dtype)).view(2, -1)
    inverse = (variance + ctx.eps).rsqrt_()
    scale = inverse if weight is None else inverse * weight
    slope = scale * inverse * mean_product
    per_channel = scale, slope, mean * slope - scale * mean_gradient
    scale, slope, offset = [each.view(-1, *[1] * (input.dim() - 2)) for each in per_channel]
    if scaled is None:
        scaled = gradient.to(mean.dtype) * scale
    return scaled.addcmul_(input.to(mean.dtype), slope, value=-1).add_(offset).to(input.dtype)
