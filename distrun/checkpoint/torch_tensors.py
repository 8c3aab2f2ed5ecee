"""Tensors of torch in checkpoints, on any device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from distrun.checkpoint.numpy_arrays import Bytes, Capture
from distrun.errors import UsageError

if TYPE_CHECKING:
    import torch


def matches(value: Any) -> bool:
    """Whether a value is a tensor, parameters included."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def captured(tensor: torch.Tensor, path: str) -> Capture:
    """Return the note, size and bytes of a tensor. `path` is its place, for messages.

    Raises:
        UsageError: it is sparse, quantised, on `meta` or sharded, and has no memory of its own that a rank could save.
    """
    import torch

    tensor = tensor.detach()
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not is_dense or hasattr(tensor, "full_tensor"):
        kind = "sharded over ranks (a DTensor)" if is_dense else f"{tensor.layout} on {tensor.device}, {tensor.dtype}"
        raise UsageError(f"{path} is a tensor that a checkpoint cannot hold, {kind}: save a dense copy of it")

    def copy(target: Bytes) -> None:
        view(target, tensor.dtype, tensor.shape).copy_(tensor, non_blocking=True)

    return Capture(
        {"dtype": str(tensor.dtype).rpartition(".")[2], "shape": list(tensor.shape)},
        tensor.numel() * tensor.element_size(),
        copy,
        (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else None,
        tensor.is_cuda,
    )


def restored(note: dict[str, Any], data: Bytes, like: Any) -> torch.Tensor:
    """Return the tensor with these bytes: on the device of `like` if that is a tensor, else on the CPU in their memory.

    Raises:
        UsageError: this torch does not have its dtype.
    """
    import torch

    dtype = getattr(torch, note["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"the checkpoint has a tensor of {note['dtype']}, which torch {torch.__version__} has not")
    tensor = view(data, dtype, torch.Size(note["shape"]))
    return tensor.to(like.device) if isinstance(like, torch.Tensor) else tensor


def view(data: Bytes, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """Return a tensor in the memory of `data`."""
    import torch

    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).view(shape)
