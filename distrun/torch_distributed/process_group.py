"""The process group of the backend: torch.distributed's collectives as operations of distrun.

Operations have no names: the ranks of a group call them in one order, and that is how they are matched. So a rank that
calls another one than the others is found out at once, and a step that repeats itself sends no more than cache ids.

A call that is not asynchronous waits here, and gives a work that is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup, Work

from distrun.runtime import world
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CUDA
from distrun.torch import operations
from distrun.torch_distributed.members import Members, all_ranks, some_ranks
from distrun.torch_distributed.moving import Moving
from distrun.torch_distributed.reducing import Reducing, by_dtype, storable
from distrun.torch_distributed.uncompiled import leave_uncompiled
from distrun.torch_distributed.work import DONE, DistrunWork, collect, wait_until

if TYPE_CHECKING:
    from distrun.torch_distributed.point_to_point import PointToPoint


def create(store: Store, rank: int, size: int, timeout: timedelta) -> DistrunProcessGroup:
    """Return the process group of all ranks, of which we are `rank`. Raises as `joining.join` does."""
    return DistrunProcessGroup(store, rank, size, timeout, all_ranks(store, rank, size, timeout))


def create_described(options: Any) -> DistrunProcessGroup:
    """Return a process group as torch's `_DistributedBackendOptions` describe it: of some ranks, or of all."""
    store, rank, size, timeout = options.store, options.group_rank, options.group_size, options.timeout
    if not options.global_ranks_in_group:
        return create(store, rank, size, timeout)
    name = options.group_id
    return DistrunProcessGroup(store, rank, size, timeout, some_ranks(options.global_ranks_in_group, name), name)


Tensors = Sequence[Tensor]
Lists = Sequence[Sequence[Tensor]]

DEFAULT = "default_pg"
"""The name that torch gives the group of all ranks."""


class DistrunProcessGroup(ProcessGroup):
    """A process group on distrun."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, members: Members, name: str = DEFAULT
    ) -> None:
        """
        Args:
            store: shared by the ranks of the group.
            rank, size: this rank's place in the group, and the number of its ranks.
            timeout: how long an operation may take.
            members: all ranks of the group.
            name: what torch calls the group, the same on all its ranks.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # which makes what Python may override
        self._store = store
        self._members = members
        self._set = members.process_set
        self._name = self._label = name
        self._description = "undefined"
        self._timeout = timeout.total_seconds()
        self._reducing = Reducing(members.process_set)
        self._moving = Moving(members)
        self._messages: PointToPoint | None = None

    # Starting and waiting ---------------------------------------------------------------------------------------------

    def _start(self, handles: Sequence[Handle], tensors: Any, opts: Any) -> Work:
        timeout = self._timeout
        if opts is not None:
            given = opts.timeout
            if given.days >= 0:  # else it was not given
                timeout = given.total_seconds() or timeout
            if not getattr(opts, "asyncOp", True):
                deadline = waking_clock.now() + timeout
                for handle in handles:
                    handle.engine.run(handle)
                for handle in handles:
                    wait_until(handle, deadline, timeout, self._label)
                collect(handles, self._label)
                return DONE
        for handle in handles:
            handle.engine.submit(handle)
        return DistrunWork(handles, tensors, timeout, self._label)

    # Reductions -------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a tensor in place."""
        return self._start([self._reducing.in_place(tensors, _op(opts))], tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce tensors in place, those of one dtype as one operation."""
        groups = [[tensors[place] for place in places] for places in by_dtype(tensors)]
        return self._start([self._reducing.in_place(group, _op(opts)) for group in groups], tensors, opts)

    # Moving -----------------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy the tensor of the rank `opts.rootRank` of the group to all."""
        root = self._members.ranks[opts.rootRank if opts is not None else 0]
        call = broadcast_call(None, root, self._set)
        return self._start([operations.broadcast(storable(tensors[0]), call, in_place=True)], tensors, opts)

    def allgather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy each rank's tensor into the list of all."""
        return self._start([self._moving.allgather([outputs[0]], inputs)], outputs, opts)

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have called this."""
        handle = Handle(world.engine(), Call("barrier", process_set=self._set).request("uint8", ()), ())
        return self._start([handle], [], opts)

    # Messages ---------------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        return self._point_to_point().send(tensors, destination, tag, self._timeout)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        return self._point_to_point().receive(tensors, source, tag, self._timeout)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive a tensor from whichever rank has sent one; the work tells its `source_rank`."""
        return self._point_to_point().receive(tensors, None, tag, self._timeout)

    def _point_to_point(self) -> PointToPoint:
        if self._messages is None:
            from distrun.torch_distributed.point_to_point import PointToPoint  # only here: most programs send none

            self._messages = PointToPoint(self._members.ranks, self.rank(), self._name)
        return self._messages

    # The group --------------------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend."""
        return "distrun"

    # torch keeps names in C++ where a group of Python's has no place for them.

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name by which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name by which torch finds the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return what the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set what the group is for; torch says "undefined" where nobody has said it."""
        self._description = description
        if description != "undefined":
            self._label = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", CUDA] if world.device().name == CUDA else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def get_group_store(self) -> Store:
        """Return the store that the ranks of the group share."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation may take from now on."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group."""
        self._members.leave()

    abort = shutdown


def _op(opts: Any) -> dist.ReduceOp:
    return _SUM if opts is None else opts.reduceOp


_SUM = dist.ReduceOp(dist.ReduceOp.SUM)


leave_uncompiled(DistrunProcessGroup)
leave_uncompiled(DistrunWork)
