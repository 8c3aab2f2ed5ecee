"""Shared parts of the rank programs: running checks in order, small models, and training in one process."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator

import torch

import distrun.torch as hvd

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check; all ranks run all checks in the order of their definition."""
    _checks.append(function)
    return function


def run_checks() -> None:
    """Run them. A failure names the check, ends this rank, and so the job."""
    hvd.init()
    torch.set_num_threads(1)
    for function in _checks:
        try:
            torch.manual_seed(7)
            function()
            hvd.barrier()
        except BaseException:
            traceback.print_exc()
            print(f"FAILED on rank {hvd.rank()}: {function.__name__}", file=sys.stderr, flush=True)
            raise SystemExit(1) from None


def same_on_all_ranks(tensors: Iterator[torch.Tensor] | list[torch.Tensor]) -> bool:
    """Whether all ranks hold the same bits."""
    bits = [tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return all(others == bits for others in hvd.allgather_object(bits, "bits"))


def close(left: list[torch.Tensor], right: list[torch.Tensor], tolerance: float = 1e-6) -> bool:
    """Whether two lists of tensors agree."""
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(left, right, strict=True))


def network(dtype: torch.dtype = torch.float64) -> torch.nn.Sequential:
    """A small model, the same on all ranks."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers).to(dtype)


def batches(count: int, rows: int = 12, dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The combined batches, the same on all ranks."""
    torch.manual_seed(5)
    return [(torch.randn(rows, 6, dtype=dtype), torch.randn(rows, 2, dtype=dtype)) for _ in range(count)]


def mine(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a combined batch."""
    features, targets = batch
    return features[hvd.rank() :: hvd.size()], targets[hvd.rank() :: hvd.size()]


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean squared error: its mean over equal parts is that of the whole."""
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    """The model's parameters, detached copies."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def gradients(model: torch.nn.Module) -> list[torch.Tensor | None]:
    """The model's gradients, copies."""
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
