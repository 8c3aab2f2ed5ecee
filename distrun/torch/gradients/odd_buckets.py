"""The buckets for gradients that do not fit into one buffer: sparse ones, and those that a user's compressor
changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.compressors import Compressor
from distrun.runtime.operations.handle import AnyHandle
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.world import world
from distrun.torch import cuda, operations
from distrun.torch.gradients.arrivals import Arrivals
from distrun.torch.gradients.bucket import Bucket, Start, flags_of
from distrun.torch.sparse import SparseHandle, start_sparse


class SparseBucket(Bucket):
    """One parameter with sparse (COO) gradients: the ranks' indices and values are gathered, and added up on every
    rank."""

    def __init__(self, call: Call, place: int, parameter: Tensor, sparse_dims: int) -> None:
        super().__init__(call, [place], [parameter])
        if call.op not in (Average, Sum):
            raise UsageError(
                f"sparse gradients with op={call.op} are not offered: use Average or Sum, or sparse_as_dense=True"
            )
        self._sparse_dims = sparse_dims
        self._handle: SparseHandle | None = None

    @torch.no_grad()
    def send(self, start: Start) -> None:
        (parameter,) = self.parameters
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.sparse_coo_tensor(
                parameter.new_empty((self._sparse_dims, 0), dtype=torch.int64),
                parameter.new_empty((0, *parameter.shape[self._sparse_dims :])),
                parameter.shape,
                check_invariants=False,
            )
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(self._sparse_dims)
        self._handle = start_sparse(gradient, self.call, start)
        self.is_sent = True

    def drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.wait()

    def receive(self) -> None:
        (parameter,) = self.parameters
        handle, self._handle = self._handle, None
        assert handle is not None
        gradient = handle.wait()
        if gradient._nnz() or parameter.grad is not None:
            parameter.grad = gradient


class CompressedBucket(Bucket):
    """Gradients that a user's compressor compresses one by one. They travel in one operation per dtype.

    The flags (see `DenseBucket`) are always in host memory, so that the host need not wait for the GPU.
    """

    def __init__(
        self,
        call: Call,
        places: Sequence[int],
        parameters: Sequence[Tensor],
        compressor: Compressor,
        sparse_dims: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(call, places, parameters, sparse_dims)
        self._compressor = compressor
        self._contexts: list[Any] = []
        self._handle: AnyHandle | None = None
        self._arrivals = Arrivals(cuda.arena()) if cuda.kind(parameters[0]) == cuda.CUDA else None

    def take(self, place: int) -> None:
        if self._arrivals is not None:
            self._arrivals.note()

    @torch.no_grad()
    def send(self, start: Start) -> None:
        present, absent = flags_of(self.call.op)
        self._start(start, [absent if parameter.grad is None else present for parameter in self.parameters])

    def _start(self, start: Start, values: Sequence[float]) -> None:
        flags = torch.tensor(values, device=cuda.CPU)
        if self._arrivals is None:
            tensors = self._compressed()
        else:
            driver, stream = world.engine().gpu().driver, cuda.arena().current_stream()
            with driver.use:
                others = self._arrivals.join(driver, stream)
                tensors = self._compressed()
                if others:
                    self._arrivals.release(driver, stream, others)
        # Not in place: a compressor may have returned the gradient itself.
        self._handle = operations.grouped([*tensors, flags], self.call, operations.allreduce, start)
        self.is_sent = True

    def _compressed(self) -> list[Tensor]:
        """Return the compressed tensors; on the GPU, their computation is queued on the current stream."""
        tensors = []
        self._contexts = []
        for index, parameter in enumerate(self.parameters):
            compressed, context = self._compressor.compress(self._gradient(parameter, index))
            tensors.append(compressed)
            self._contexts.append(context)
        return tensors

    def _gradient(self, parameter: Tensor, index: int) -> Tensor:
        """Return a parameter's gradient as a dense tensor, or zeros if there is none."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return self.to_dense(gradient, index) if gradient.is_sparse else gradient

    def drop(self) -> None:
        if self._arrivals is not None:
            self._arrivals.clear()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.wait()

    @torch.no_grad()
    def receive(self) -> None:
        handle, self._handle = self._handle, None
        assert handle is not None
        *reduced, flags = handle.wait()
        _, absent = flags_of(self.call.op)
        for index, (parameter, tensor, context, flag) in enumerate(
            zip(self.parameters, reduced, self._contexts, flags.tolist(), strict=True)
        ):
            if flag != absent:
                gradient = self._compressor.decompress(tensor, context)
                parameter.grad = self.as_it_came(gradient.to(parameter.dtype).reshape(parameter.shape), index)
