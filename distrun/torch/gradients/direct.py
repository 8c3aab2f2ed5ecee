"""Direct passes: backward passes whose buckets the thread that computes them queues itself, without negotiation.

Negotiation costs every bucket a message and a turn of another thread. A direct pass negotiates two small operations,
however many buckets there are:

- `begin` is submitted before the first gradient. Each rank says whether it can queue its buckets directly, and a rank
  that has joined says nothing. If all can, the pass is direct; otherwise every bucket is negotiated, as always.
- `end` is run when all buckets are queued. Each rank says whether its pass has failed. After it, the results may be
  used, or all ranks raise.

Invariant: the ranks of a direct queue put the same buckets there in the same order. For all read the same sums, so a
pass is direct, and fails, on all ranks or on none. In a direct pass each rank queues each bucket once, in the order of
the agreement: a bucket that is complete before an earlier one waits for it, and a rank whose pass fails fills in the
rest. A rank that is gone or late is missing in `end`, where negotiation names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from distrun.errors import CollectiveError
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Min, Sum
from distrun.runtime.operations.request import CPU
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.gradients.bucket import Bucket, Start, failed_elsewhere
from distrun.torch.gradients.bucket_set import BucketSet
from distrun.torch.gradients.device_bucket import DeviceBucket
from distrun.torch.gradients.planning import Agreement, Settings
from distrun.torch.operations import prepare, run, submit

if TYPE_CHECKING:
    from distrun.runtime.gpu.handles import DeviceHandle, GpuEngine
    from distrun.runtime.gpu.nccl.direct_queue import DirectQueue

FEWEST = 3
"""The number of buckets from which a direct pass negotiates less."""


class DirectPasses:
    """The direct passes of a reducer. Until `connect` opened a queue, no pass is direct."""

    def __init__(self, name: str) -> None:
        """`name` is the prefix of the operations' names."""
        self._name = name
        self._queue: DirectQueue | None = None
        self._begun: Handle | None = None
        self._is_ended = False

    def connect(self, agreement: Agreement, settings: Settings, buckets: BucketSet) -> None:
        """Open a queue, if the user wants it and `buckets` may be reduced directly. All ranks call this."""
        self._settings, self._size = settings, settings.process_set.size()
        if agreement.wants_direct and self._queue is None and _may_be_direct(buckets):
            flag = cuda.arena().empty(1, np.dtype(np.uint8), cuda.arena().current_stream())
            call = settings.call(f"{self._name}.queue")._replace(op=Min, prescale=1.0, postscale=1.0, wire="")
            handle = cast("DeviceHandle", prepare(call.request("uint8", ((1,),), cuda.CUDA), (flag,), (flag,), _given))
            handle.opens_queue, handle.kept_alive = True, (flag,)
            self._queue = run(handle).wait()

    def disconnect(self) -> None:
        """Forget the queue, which the ranks of the last generation had."""
        self._queue = self._begun = None

    def begin(self, buckets: BucketSet, caller: FrameType | None) -> None:
        """Begin a pass, which may become a direct one."""
        if self._queue is not None and _may_be_direct(buckets):
            self._begun = submit(self._prepare("begin", not (_is_serial() or cuda.is_capturing()), caller))

    def _prepare(self, name: str, value: bool, caller: FrameType | None = None) -> Handle:
        arrays = (np.array([value], np.int32),)
        call = self._settings.call(f"{self._name}.{name}")._replace(op=Sum, prescale=1.0, postscale=1.0, wire="")
        handle = Handle(world.engine(), call.request("int32", ((1,),), CPU), arrays, arrays, _total)
        handle.caller = caller
        return handle

    def next(self, bucket: Bucket, buckets: Iterable[Bucket]) -> list[Bucket]:
        """Return the buckets to send now that `bucket` is complete. It may have to wait, or others may have waited."""
        begun = self._begun
        if begun is None:
            return [bucket]
        if not begun.poll():
            return []
        unsent = (each for each in buckets if not each.is_sent)
        if self.is_direct():
            return list(takewhile(_is_complete, unsent))
        return list(filter(_is_complete, unsent))

    def is_direct(self) -> bool:
        """Return whether this pass is direct. Wait until that is known.

        Raises:
            CollectiveError: as `Handle.wait` raises.
        """
        return self._begun is not None and self._begun.wait() == self._size

    def start(self, handle: Handle) -> Handle:
        """Queue a bucket's reduction in a direct pass. Raises as `DirectQueue.queue` does."""
        assert self._queue is not None
        return self._queue.queue(cast("DeviceHandle", handle))

    def end(self, caller: FrameType | None = None, has_failed: bool = False) -> None:
        """End a direct pass whose buckets are all queued. Other passes just end.

        Raises:
            CollectiveError: the pass has failed on a rank, or as `Handle.wait` raises.
        """
        if self._queue is None or not self.is_direct():
            return
        self._is_ended = True
        try:
            failures = run(self._prepare("end", has_failed, caller)).wait()
        except CollectiveError as error:
            # Other ranks will not queue what the GPU now waits for.
            cast("GpuEngine", world.engine()).fail(str(error))
            raise
        self._queue.confirm()
        if failures:
            raise failed_elsewhere(self._name)

    def forfeit(self, buckets: BucketSet, start: Start) -> None:
        """Take part in what is left of a pass that has failed here, or on another rank, and drop its results.

        Raises:
            Exception: as `BucketSet.forfeit` raises.
        """
        try:
            if not self.is_direct():
                buckets.forfeit(start)
                return
            for bucket in buckets:
                if not bucket.is_sent:
                    cast(DeviceBucket, bucket).fill_in(start)
            if not self._is_ended:
                with suppress(CollectiveError):
                    self.end(has_failed=True)
            buckets.drain()
        finally:
            self.close()

    def close(self) -> None:
        """Close the pass."""
        self._begun, self._is_ended = None, False


def _may_be_direct(buckets: BucketSet) -> bool:
    return len(buckets) >= FEWEST and all(
        isinstance(bucket, DeviceBucket) and bucket.may_be_direct for bucket in buckets
    )


def _is_serial() -> bool:
    """Whether the GPU starts kernels in the order of the host, whatever their stream: two communicators, whose orders
    differ between the ranks, would wait for each other."""
    return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"


def _is_complete(bucket: Bucket) -> bool:
    return not bucket.waiting_for


def _given(handle: Handle) -> Any:
    return handle.given


def _total(handle: Handle) -> int:
    return int(handle.outputs[0][0])
