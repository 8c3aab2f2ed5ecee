"""Broadcasts of parameters, of optimizer state, and of many tensors at the speed of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives import consistency, objects
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.tensor_fusion.packing import small_as_one
from distrun.torch import cuda
from distrun.torch.copies import broadcast_async_
from distrun.torch.state.skeletons import take_apart
from distrun.torch.tensors import check_written, dtype_name, empty, is_flat

Parameters = Mapping[str, Any] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def broadcast_parameters(params: Parameters, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Overwrite tensors with the root's, in place: `broadcast_parameters(model.state_dict(), root_rank=0)`.

    Args:
        params: a state_dict, or an iterable of tensors or of pairs of a name and a tensor. Other values are ignored.
        root_rank: the rank, in the world, whose tensors they are.
        process_set: the ranks that take part.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        MismatchError: the ranks do not have the same names, shapes and dtypes.
    """
    named = _named(params)
    process_set.check_root(root_rank)
    if process_set.size() == 1:
        return
    consistency.compare(
        [consistency.describe(name, tensor.shape, tensor.dtype) for name, tensor in named],
        "the parameters to broadcast",
        "broadcast_parameters",
        process_set=process_set,
    )
    _broadcast([tensor for _, tensor in named], root_rank, "broadcast_parameters.tensors", process_set)


def _broadcast(tensors: Sequence[Tensor], root_rank: int, name: str, process_set: ProcessSet) -> None:
    for tensor in tensors:
        dtype_name(tensor)  # refuses what cannot travel
    if world.rank() != root_rank:
        check_written(tensors)
    broadcast_tensors(tensors, root_rank, name, process_set)


def _named(params: Parameters) -> list[tuple[str, Tensor]]:
    if isinstance(params, Mapping):
        return [(str(name), value) for name, value in params.items() if isinstance(value, Tensor)]
    if isinstance(params, (Tensor, str)) or not isinstance(params, Iterable):
        raise UsageError(
            "broadcast_parameters takes a state_dict, or tensors, or pairs of a name and a tensor, not a "
            f"{type(params).__name__}"
        )
    named = []
    for place, entry in enumerate(params):
        name, value = entry if isinstance(entry, tuple) else (str(place), entry)
        if isinstance(value, Tensor):
            named.append((name, value))
    return named


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank's optimizer the root's state and options (learning rates included).

    Only the root needs to have any state, such as from a checkpoint. Tensors on the root's GPU arrive on the receivers'
    GPUs. Works with every optimizer whose `load_state_dict` accepts its `state_dict`, including LBFGS.

    Args:
        optimizer: wrapped or not.
        root_rank: the rank, in the world, whose state it is.
        model: accepted for Horovod's sake, and not needed.
        process_set: the ranks that take part.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        MismatchError: the optimizers do not have the same parameters.
    """
    process_set.check_root(root_rank)
    if process_set.size() == 1:
        return
    entries = [
        consistency.describe(f"parameter {group}.{index}", parameter.shape, parameter.dtype)
        for group, options in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(options["params"])
    ]
    what = "the parameters of the optimizer"
    consistency.compare(entries, what, "broadcast_optimizer_state", process_set=process_set)
    is_root = world.rank() == root_rank
    skeleton, tensors = take_apart(optimizer.state_dict()) if is_root else (None, [])
    skeleton = objects.broadcast_object(skeleton, root_rank, "broadcast_optimizer_state.skeleton", process_set)
    if not is_root:
        tensors = [slot.empty() for slot in skeleton.slots]
    _broadcast(tensors, root_rank, "broadcast_optimizer_state.tensors", process_set)
    if not is_root:
        optimizer.load_state_dict(skeleton.filled(tensors))


def broadcast_tensors(
    tensors: Sequence[Tensor], root_rank: int, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors with the root's, in place.

    Args:
        tensors: of any shapes and dtypes, on the CPU or on this rank's GPU, with the same sizes on all ranks.
        root_rank: the rank, in the world, whose tensors they are.
        name: how the ranks match the operations.
        process_set: the ranks that take part.

    Raises:
        UsageError: a tensor lies elsewhere.
        CollectiveError: the ranks have other sizes, or one is gone.
    """
    for tensor in tensors:
        if cuda.kind(tensor) != cuda.CPU:
            cuda.check(tensor)
    is_root = world.rank() == root_rank
    copies = [tensor.detach().resolve_conj().resolve_neg().contiguous() for tensor in tensors]
    flats = [copy.view(-1).view(torch.uint8) for copy in copies if copy.numel()]
    sent: list[Tensor] = []
    finishing = []
    for kind in (cuda.CPU, cuda.CUDA):
        own = [flat for flat in flats if cuda.kind(flat) == kind]
        fused, finish = small_as_one(own, is_root, partial(empty, kind, dtype=torch.uint8), torch.cat)
        sent += fused
        finishing.append(finish)
    handles = [broadcast_async_(flat, root_rank, f"{name}.{place}", process_set) for place, flat in enumerate(sent)]
    for handle in handles:
        handle.wait()
    for finish in finishing:
        finish()
    if not is_root:
        for tensor, copy in zip(tensors, copies, strict=True):
            if not is_flat(tensor):
                tensor.detach().copy_(copy)
