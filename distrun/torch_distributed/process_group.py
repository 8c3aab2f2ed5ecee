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

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CUDA
from distrun.torch import operations
from distrun.torch_distributed.arguments import check_one_each
from distrun.torch_distributed.members import Members, all_ranks, some_ranks
from distrun.torch_distributed.monitored_barrier import offer, wait_for_all
from distrun.torch_distributed.moving import Moving, storable
from distrun.torch_distributed.reducing import SUM, Reducing, groups
from distrun.torch_distributed.uncompiled import leave_uncompiled
from distrun.torch_distributed.work import DONE, DistrunWork, Finish, Standing, collect, wait_until

if TYPE_CHECKING:
    from distrun.torch_distributed.point_to_point import PointToPoint


def create(store: Store, rank: int, size: int, timeout: timedelta) -> DistrunProcessGroup:
    """Return the process group of all ranks, of which we are `rank`. Raises as `joining.join` does."""
    offer(DistrunProcessGroup)
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
        self._name = name
        self._standing = Standing(name)
        self._description = "undefined"
        self._timeout = timeout.total_seconds()
        self._rank = rank
        self._size = size
        self._nothing: list[None] = [None] * size
        self._reducing = Reducing(members, rank)
        self._moving = Moving(members)
        self._messages: PointToPoint | None = None
        self._barriers = 0

    # Starting and waiting ---------------------------------------------------------------------------------------------

    def _start(self, handles: Sequence[Handle], tensors: Any, opts: Any, finish: Finish | None = None) -> Work:
        if self._standing.given_up is not None:
            self._standing.refuse()
        for handle in handles:
            handle.may_be_given_up = True
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
                    wait_until(handle, deadline, timeout, self._standing)
                collect(handles, self._standing)
                if finish is not None:
                    finish()
                return DONE
        for handle in handles:
            handle.engine.submit(handle)
        return DistrunWork(handles, tensors, timeout, self._standing, finish)

    # Reductions -------------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a tensor in place, a sparse one as well."""
        if tensors[0].layout is torch.sparse_coo:
            handles, finish = self._reducing.sparse_in_place(tensors[0], _op(opts))
            return self._start(handles, tensors, opts, finish)
        return self._start([self._reducing.in_place(tensors, _op(opts))], tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce tensors in place, those of one dtype as one operation."""
        handles = [self._reducing.in_place(group, _op(opts)) for (group,) in groups(tensors)]
        return self._start(handles, tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a tensor into that of the rank `opts.rootRank` of the group."""
        handle = self._reducing.to_root(tensors[0], _op(opts), self._rank == self._root(opts))
        return self._start([handle], tensors, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce lists of a tensor for each rank; each rank gets its own, of any size."""
        check_one_each(inputs[0], self._size)
        return self._start([self._reducing.scattered(outputs, inputs, _op(opts))], outputs, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Reduce a tensor, of which each rank gets an equal part."""
        return self._start([self._reducing.scattered([output], [[input]], _op(opts))], [output], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce tensors, those of one dtype as one operation; each rank gets an equal part of each."""
        handles = [
            self._reducing.scattered(group, [[whole] for whole in wholes], _op(opts))
            for group, wholes in groups(outputs, inputs)
        ]
        return self._start(handles, outputs, opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # as older releases of torch call it
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    # Copies -----------------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy the tensor of the rank `opts.rootRank` of the group to all."""
        call = broadcast_call(None, self._members.ranks[self._root(opts)], self._set)
        return self._start([operations.broadcast(storable(tensors[0]), call, in_place=True)], tensors, opts)

    def allgather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy each rank's tensor, of any size, into the list of all."""
        check_one_each(outputs[0], self._size)
        return self._start([self._moving.allgather([outputs[0]], inputs)], outputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Copy the ranks' tensors, of one size, into one tensor."""
        return self._start([self._moving.allgather([[output]], [input])], [output], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Do what `all_gather_single` does for several tensors, with those of one dtype as one operation."""
        handles = [
            self._moving.allgather([[output] for output in wholes], group) for group, wholes in groups(inputs, outputs)
        ]
        return self._start(handles, outputs, opts)

    def allgather_coalesced(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work:
        """Copy each rank's tensors into the list that is there for its rank."""
        check_one_each(outputs, self._size)
        targets = list(zip(*outputs, strict=True))
        handles = [self._moving.allgather(lists, group) for group, lists in groups(inputs, targets)]
        return self._start(handles, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy each rank's tensor into the list of the rank `opts.rootRank` of the group."""
        root = self._root(opts)
        targets = outputs[0] if self._rank == root else self._nothing
        handle = self._moving.exchange(self._only(root, inputs[0]), targets, inputs[0])
        return self._start([handle], outputs, opts)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy a tensor of the list that the rank `opts.rootRank` of the group has to each rank."""
        root = self._root(opts)
        parts = inputs[0] if self._rank == root else self._nothing
        handle = self._moving.exchange(parts, self._only(root, outputs[0]), outputs[0])
        return self._start([handle], outputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Copy a tensor from each rank to each rank."""
        check_one_each(inputs, self._size)
        return self._start([self._moving.exchange(inputs, outputs, inputs[0])], outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Copy rows of a tensor to each rank, as many as the splits say, or to each the same number."""
        handle = self._moving.exchange_rows(output, input, output_splits, input_splits)
        return self._start([handle], [output], opts)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have called this."""
        handle = Handle(world.engine(), Call("barrier", process_set=self._set).request("uint8", ()), ())
        return self._start([handle], [], opts)

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have called this; says which ones have not come in time, whatever `wait_all_ranks` is.

        Raises:
            StallError: that is so.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout or self._timeout
        self._barriers += 1
        key = f"distrun/monitored_barrier/{self._members.unique_name}/{self._barriers}"
        wait_for_all(self._store, key, self._rank, self._members.ranks, seconds, self._standing.label)

    def _root(self, opts: Any) -> int:
        """Return the rank of the group that sends or receives for all; raises `UsageError` if there is none such."""
        root: int = 0 if opts is None else opts.rootRank
        size = len(self._members.ranks)
        if not 0 <= root < size:
            raise UsageError(
                f"rank {root} is not in process group {self._standing.label!r}: give a rank of the group from 0 to "
                f"{size - 1}"
            )
        return root

    def _only(self, rank: int, tensor: Tensor) -> list[Tensor | None]:
        """Return a tensor for one rank, and nothing for the others."""
        return [tensor if each == rank else None for each in range(len(self._members.ranks))]

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

            self._messages = PointToPoint(self._members, self._rank, self._standing.label)
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
            self._standing.label = description

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

    def abort(self) -> None:
        """Leave the group, whatever the others do; what is under way fails if this is the group of all ranks."""
        self._members.leave(is_aborting=True)


def _op(opts: Any) -> dist.ReduceOp:
    return SUM if opts is None else opts.reduceOp


leave_uncompiled(DistrunProcessGroup)
leave_uncompiled(DistrunWork)
