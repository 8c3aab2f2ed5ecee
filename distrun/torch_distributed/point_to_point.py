"""Sending and receiving: torch.distributed's messages between two ranks of a process group.

A tensor on a GPU travels through host memory: `send` waits for the stream that produces it, and a received tensor is
copied on the stream that is current where the work is waited for. A non-contiguous tensor is copied as well.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from distrun.errors import DistrunError
from distrun.runtime.collectives.point_to_point import messages
from distrun.runtime.collectives.point_to_point.transfer import Receive, Transfer
from distrun.runtime.operations import waking_clock
from distrun.torch import cuda, tensors as storage
from distrun.torch_distributed import completion
from distrun.torch_distributed.interface.calls import ArgumentError
from distrun.torch_distributed.interface.native_work import PythonWork, leave_uncompiled
from distrun.torch_distributed.members import Members

_NOTHING = timedelta(0)
_TAGS = 1 << 63


class PointToPoint:
    """The messages of one process group. Ranks are ranks in the group."""

    def __init__(self, members: Members, rank: int, label: str) -> None:
        """`members` are all ranks of the group, `rank` is ours in it, and `label` its name in messages for people."""
        self._ranks = members.ranks
        self._rank = rank
        self._group = members.unique_name
        self._label = label

    def send(self, tensors: Sequence[Tensor], destination: int, tag: int, timeout: float) -> Work:
        """Start to send a tensor, which must not change before the work is done.

        Raises:
            ArgumentError: `destination` is this rank, or not in the group, or this is not one dense tensor.
            JobAbortedError: the job has failed.
        """
        tensor = _only(tensors, tag)
        self._check(destination, "send to")
        host = _in_a_row(tensor)
        transfer = messages.send(_memory(host), self._ranks[destination], self._group, tag, _dtype(tensor))
        return MessageWork(transfer, tensor, None, timeout, self)

    def receive(self, tensors: Sequence[Tensor], source: int | None, tag: int, timeout: float) -> Work:
        """Start to receive a tensor, from any rank if `source` is None. Raises as `send` does."""
        tensor = _only(tensors, tag)
        storage.check_written([tensor])
        if source is None:
            sources = [rank for place, rank in enumerate(self._ranks) if place != self._rank]
        else:
            self._check(source, "receive from")
            sources = [self._ranks[source]]
        is_direct = cuda.kind(tensor) == cuda.CPU and tensor.is_contiguous() and not _is_lazy(tensor)
        host = tensor.detach() if is_direct else torch.empty(tensor.shape, dtype=tensor.dtype)
        transfer = messages.receive(_memory(host), sources, self._group, tag, _dtype(tensor))
        return MessageWork(transfer, tensor, None if is_direct else host, timeout, self)

    def place(self, rank: int) -> int:
        """Return the rank in the group of a rank of the job."""
        return list(self._ranks).index(rank)

    def explain(self, error: Exception) -> Exception:
        """Return an error of the same type with the name of the group in its text."""
        return type(error)(f"process group {self._label!r}: {error}")

    def _check(self, rank: int, verb: str) -> None:
        size = len(self._ranks)
        if not 0 <= rank < size:
            raise ArgumentError(
                f"rank {self._rank} of process group {self._label!r} cannot {verb} rank {rank}: it has ranks 0 to "
                f"{size - 1}"
            )
        if rank == self._rank:
            raise ArgumentError(
                f"rank {rank} of process group {self._label!r} cannot {verb} itself: a message goes from one rank to "
                "another; copy the tensor"
            )


@leave_uncompiled
class MessageWork(PythonWork):
    """A tensor that is being sent or received."""

    def __init__(
        self, transfer: Transfer, tensor: Tensor, host: Tensor | None, timeout: float, group: PointToPoint
    ) -> None:
        """`host` is the tensor in host memory that receives the message, if that is not the memory of `tensor`. A wait
        may take `timeout` seconds, and so may a future, from its start."""
        super().__init__()
        self._transfer = transfer
        self._tensor = tensor
        self._host = host
        self._arena = cuda.arena() if cuda.kind(tensor) == cuda.CUDA else None
        self._moment = self._arena.moment() if self._arena is not None and host is not None else None
        """For a message that is copied to a GPU: the point after the work queued before this one and, later, after the
        copy."""
        self._timeout = timeout
        self._group = group
        self._future: Future[Any] | None = None
        self._collecting = threading.Lock()
        self.deadline = waking_clock.now() + timeout

    def wait(self, timeout: timedelta = _NOTHING) -> bool:
        """Return True when the message is sent or received. The current stream may then use a tensor on a GPU.

        Args:
            timeout: how long to wait. 0 stands for the timeout of the process group.

        Raises:
            JobAbortedError: the other rank is gone, or the job has failed.
            StallError: the time is over. The message is given up, and the next one takes its place.
            MismatchError: the other rank's tensor has another number of elements or another dtype.
        """
        seconds = timeout.total_seconds()
        if not self._transfer.done:
            completion.before_waiting()
        self._await(seconds if seconds > 0 else self._timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether the message is sent or received, or has failed."""
        if not self._transfer.done:
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Return whether the message is sent or received without an error."""
        return self._transfer.done and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error of the message, if it has failed."""
        if not self._transfer.done:
            return None
        try:
            self._await(0.0)
        except DistrunError as error:
            return error
        return None

    def source_rank(self) -> int:
        """Return the rank in the group that has sent the message.

        Raises:
            ArgumentError: it is not known yet, or this rank has sent it.
        """
        source = self._transfer.source
        if source is None:
            is_receive = isinstance(self._transfer, Receive)
            raise ArgumentError(
                "it is not known yet who has sent the message: wait for it first"
                if is_receive
                else "a message that this rank sends has no source rank: ask the work of a receive"
            )
        return self._group.place(source)

    _source_rank = source_rank

    def result(self) -> list[Tensor]:
        """Return the tensor in a list. It has its values once the work is done."""
        return [self._tensor]

    def get_future(self) -> Future[Any]:
        """Return a future of the tensor in a list, which is completed when the work is."""
        if self._future is None:
            begun: Future[None] = Future(devices=self._devices())
            self._future = begun.then(lambda _: self._outcome())
            if self._transfer.done:
                begun.set_result(None)
            else:
                completion.before_waiting()  # this may be a callback of another future that waits for this one
                completion.expect(self, begun)
                self._transfer.when_done(lambda: completion.complete(self))
        return self._future

    def _devices(self) -> list[int | str | torch.device]:
        return [] if self._arena is None else [self._arena.device]

    def _outcome(self) -> list[Tensor]:
        if self._arena is not None and completion.is_here():
            self._arena.bind()
        self._await(0.0)
        return [self._tensor]

    def _await(self, seconds: float) -> None:
        try:
            self._transfer.wait(seconds)
        except DistrunError as error:
            raise self._group.explain(error) from None
        with self._collecting:
            if self._moment is not None:
                self._moment.wait()
            if self._host is not None:
                self._tensor.detach().copy_(self._host)
                self._host = None
                if self._arena is not None:
                    self._arena.keep(self._tensor)
                    self._moment = self._arena.moment()


def _only(tensors: Sequence[Tensor], tag: int) -> Tensor:
    """Return the tensor of a list that has one, for a message with a tag that fits its header. Raises
    `ArgumentError`."""
    if len(tensors) != 1:
        raise ArgumentError(f"a message has one tensor, not {len(tensors)}: send them one after the other")
    (tensor,) = tensors
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ArgumentError(
            f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} cannot be sent or received by itself: send a "
            "dense one (.to_dense(), .dequantize())"
        )
    if not -_TAGS <= tag < _TAGS:
        raise ArgumentError(f"tag {tag} does not fit a message: give a number from {-_TAGS} to {_TAGS - 1}")
    return tensor


def _is_lazy(tensor: Tensor) -> bool:
    """Return whether the elements in memory differ from the tensor's (it is conjugated or negated lazily)."""
    return tensor.is_conj() or tensor.is_neg()


def _in_a_row(tensor: Tensor) -> Tensor:
    """Return the tensor as a contiguous one in host memory: itself if it is one already."""
    plain = tensor.detach()
    if _is_lazy(plain):
        plain = plain.resolve_conj().resolve_neg()
    return plain.contiguous().cpu()


def _memory(host: Tensor) -> memoryview:
    data: memoryview = host.reshape(-1).view(torch.uint8).numpy().data
    return data


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
