"""Runs a program of this folder or the one above with tensors in host memory that play those of a simulated GPU.

on_simulated_gpus.py PROGRAM [ARGUMENT ...]

What torch itself does to them is done at once, so the current stream is the legacy default stream, which is synchronous
with the host. Futures cannot be told of a device here, so the streams of their callbacks are not simulated.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from distrun.runtime.gpu import nccl_backend, staging
from distrun.torch import cuda
from distrun.torch_distributed.point_to_point import MessageWork
from distrun.torch_distributed.work import DistrunWork

_executed = {"NCCL": 0, "staged": 0, "moments": 0}


def count(kind: type, name: str) -> None:
    execute = kind.execute

    def counted(*arguments):
        _executed[name] += 1
        return execute(*arguments)

    kind.execute = counted


def not_on_host(tensor):
    raise TypeError("can't convert cuda:0 device type tensor to numpy")


def moment(arena):
    _executed["moments"] += 1
    return cuda.StreamPoint(arena, SimpleNamespace())


cuda.kind = lambda tensor: cuda.CUDA
cuda.is_on_gpu = lambda tensor: True
cuda.as_array = not_on_host
cuda.TorchArena.current_stream = lambda arena: 0
cuda.TorchArena.device = torch.device("cpu")
cuda.TorchArena.moment = moment
cuda.TorchArena.keep = lambda arena, tensor: None  # all is on one stream
DistrunWork._devices = MessageWork._devices = lambda work: []
count(nccl_backend.NcclBackend, "NCCL")
count(staging.StagedBackend, "staged")

own = Path(__file__).with_name(f"{sys.argv[1]}.py")
program = own if own.exists() else own.parents[1] / own.name
sys.argv[:2] = [str(program)]
runpy.run_path(str(program), run_name="__main__")
print("executed", *(f"{name}={times}" for name, times in _executed.items()))
