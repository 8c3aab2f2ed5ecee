"""CPU tensors that play CUDA tensors, on the simulated GPU: distrun.torch's use of torch.cuda is replaced."""

import threading

import torch

from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.torch import cuda

_stream = threading.local()


def play(is_on_gpu=lambda tensor: True):
    """Let CPU tensors for which `is_on_gpu` says so count as tensors on this rank's GPU from now on.

    torch works on them at once, as if all that it queues were done. So its work must be on the legacy default stream,
    for which the host waits, or must not depend on other streams.
    """

    def kind(tensor):
        device = tensor.device.type
        return "cuda" if device == "cpu" and is_on_gpu(tensor) else device

    def as_array(tensor):
        if isinstance(tensor, torch.Tensor) and kind(tensor) == "cuda":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return torch.Tensor.numpy(tensor)

    def empty(self, count, dtype, stream):
        owner = torch.empty(count, dtype=getattr(torch, dtype.name))
        owner.view(torch.uint8).fill_(0xFF)
        return DeviceBuffer(owner.data_ptr(), count, dtype, owner)

    cuda.kind = kind
    cuda.is_on_gpu = lambda tensor: isinstance(tensor, torch.Tensor) and kind(tensor) == "cuda"

    def new(tensor, shape):
        made = tensor.new_empty(shape)
        made.view(-1).view(torch.uint8).fill_(0xFF)
        return made

    cuda.as_array = as_array
    cuda.new = new
    cuda.TorchArena.current_stream = lambda self: current_stream()
    cuda.TorchArena.empty = empty
    cuda.TorchArena.keep = lambda self, tensor: None
    cuda.TorchArena.moment = lambda self: cuda.StreamPoint(self, _driver().record(current_stream()))
    cuda.TorchArena.wait_for = lambda self, event: _driver().wait(current_stream(), event)
    cuda.is_capturing = lambda: bool(current_stream()) and _driver().is_capturing(current_stream())


def _driver():
    from distrun.runtime.world import world

    return world.engine().gpu().driver


def current_stream():
    """The calling thread's, 0 unless it is within `use`."""
    return getattr(_stream, "pointer", 0)


class use:  # noqa: N801 - as torch.cuda.stream
    """Within this context a stream, given by its address, is the calling thread's current one."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __enter__(self):
        self.before, _stream.pointer = current_stream(), self.pointer

    def __exit__(self, *_):
        _stream.pointer = self.before
