"""Batch normalisation: in training, layers use the mean and variance of the whole batch, as a single process does."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from distrun.auto.torch import statistics
from distrun.auto.torch.session import current as session, is_shared
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.reduction import Sum
from distrun.torch.normalization import _normalise

_names: weakref.WeakKeyDictionary[_BatchNorm, str] = weakref.WeakKeyDictionary()
_made = 0


def _forward(layer: _BatchNorm, input: Tensor) -> Tensor:
    if not layer.training or session.part is None or session.part.is_whole or not is_shared():
        return _plain_forward(layer, input)
    layer._check_input_dim(input)  # type: ignore[no-untyped-call]
    running: Any = None
    if layer.track_running_stats and layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        momentum = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        running = layer.running_mean, layer.running_var, momentum
    with statistics.paused():
        return _normalise(input, layer.weight, layer.bias, layer.eps, running, Call("allreduce", _name(layer), Sum))


def _name(layer: _BatchNorm) -> str:
    """Return a name for the layer's operations. Layers are numbered by first use, the same order on all ranks."""
    global _made
    if layer not in _names:
        _made += 1
        _names[layer] = f"auto.batch_norm.{_made}"
    return _names[layer]


_plain_forward = _BatchNorm.forward


def install() -> None:
    """Change torch's layers of batch normalisation."""
    _BatchNorm.forward = _forward  # type: ignore[method-assign, assignment]
