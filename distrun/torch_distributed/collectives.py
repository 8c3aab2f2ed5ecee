"""The collectives of a process group, as operations of distrun.

Operations have no names: the ranks of a group call them in one order, and are matched by it. So a rank that calls a
different operation gets an error at once, and repeated steps negotiate by cache ids only.

A call that is not asynchronous waits here, and returns a completed work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import Work

from distrun.runtime.collectives.call import Call, broadcast_call
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle
from distrun.runtime.world import world
from distrun.torch import operations
from distrun.torch_distributed.interface import calls
from distrun.torch_distributed.interface.calls import ArgumentError, check_one_each, check_single, collective
from distrun.torch_distributed.interface.group import NamedGroup
from distrun.torch_distributed.members import Members
from distrun.torch_distributed.operations.moving import Moving, storable
from distrun.torch_distributed.operations.reducing import SUM, Reducing, afterwards, copy_each, groups
from distrun.torch_distributed.operations.repeated import Repeated
from distrun.torch_distributed.work import DONE, DistrunWork, Finish, collect, wait_until

Tensors = Sequence[Tensor]
Lists = Sequence[Sequence[Tensor]]


class Collectives(NamedGroup):
    """A process group with collectives, but without point-to-point messages."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, members: Members, name: str) -> None:
        """`members` are all ranks of the group. For the other arguments see `NamedGroup`."""
        super().__init__(store, rank, size, timeout, name)
        self._members = members
        self._set = members.process_set
        self._nothing: list[None] = [None] * size
        self._reducing = Reducing(members, rank)
        self._moving = Moving(members)
        self._repeated = Repeated(members)

    # Starting and waiting ---------------------------------------------------------------------------------------------

    def _start(self, handles: Sequence[Handle], tensors: Any, opts: Any, finish: Finish | None = None) -> Work:
        if self._standing.given_up is not None:
            self._standing.refuse()
        self._sequence += 1
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

    @collective("allreduce_", "all_reduce", [1], calls.ALLREDUCE)
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a tensor, dense or sparse, in place. Several tensors are added up, and each gets the result."""
        if len(tensors) != 1:
            return self._start([self._reducing.together(tensors, _op(opts))], tensors, opts)
        if tensors[0].layout is torch.sparse_coo:
            handles, finish = self._reducing.sparse_in_place(tensors[0], _op(opts))
            return self._start(handles, tensors, opts, finish)
        return self._start([self._in_place(tensors, _op(opts))], tensors, opts)

    @collective("allreduce_coalesced_", "all_reduce", [1])
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce tensors in place, those of one dtype as one operation."""
        handles = [self._in_place(group, _op(opts)) for (group,) in groups(tensors)]
        return self._start(handles, tensors, opts)

    @collective("reduce_", "reduce", [1], calls.REDUCE)
    def reduce(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Reduce a tensor into the tensor of the rank `opts.rootRank` of the group."""
        check_single("reduce", tensors)
        handle = self._reducing.to_root(tensors[0], _op(opts), self._rank == self._root(opts))
        return self._start([handle], tensors, opts)

    @collective("reduce_scatter_", "reduce_scatter", [1, 2], calls.REDUCE_SCATTER)
    def reduce_scatter(  # type: ignore[override]
        self, output_tensors: Tensors, input_tensors: Lists, opts: Any = None
    ) -> Work:
        """Reduce lists with one tensor for each rank. Each rank gets its own tensor; their sizes may differ."""
        check_single("reduce_scatter", output_tensors)
        check_single("reduce_scatter", input_tensors)
        check_one_each(input_tensors[0], self._size)
        handle = self._reducing.scattered(output_tensors, input_tensors, _op(opts))
        return self._start([handle], output_tensors, opts)

    @collective("_reduce_scatter_base_", "_reduce_scatter_base")
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Reduce a tensor. Each rank gets an equal part."""
        return self._start([self._scattered([output], [input], _op(opts))], [output], opts)

    @collective("reduce_scatter_tensor_coalesced_", "reduce_scatter", [1, 1])
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce tensors, those of one dtype as one operation. Each rank gets an equal part of each."""
        handles = [self._scattered(group, wholes, _op(opts)) for group, wholes in groups(outputs, inputs)]
        return self._start(handles, outputs, opts)

    def _in_place(self, tensors: Tensors, op: Any) -> Handle:
        call = self._reducing.call("allreduce", op)
        direct = None if call is None else self._repeated.allreduce(tensors, call)
        return direct or self._reducing.in_place(tensors, op)

    def _scattered(self, outputs: Tensors, inputs: Tensors, op: Any) -> Handle:
        call = self._reducing.call("reducescatter", op)
        direct = None if call is None else self._repeated.reducescatter(outputs, inputs, call)
        return direct or self._reducing.scattered(outputs, [[whole] for whole in inputs], op)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]  # as older releases of torch call it
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    # Copies -----------------------------------------------------------------------------------------------------------

    @collective("broadcast_", "broadcast", [1], calls.BROADCAST)
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Work:  # type: ignore[override]
        """Copy the tensor of the rank `opts.rootRank` of the group to all ranks; of several, the one at
        `opts.rootTensor`."""
        root, place = self._root(opts), 0 if opts is None else opts.rootTensor
        if len(tensors) == 1 and not place and (direct := self._repeated.broadcast(tensors[0], root)) is not None:
            return self._start([direct], tensors, opts)
        call = broadcast_call(None, self._members.ranks[root], self._set)
        if not 0 <= place < len(tensors):
            raise ArgumentError(f"rootTensor {place} is none of {len(tensors)} tensors: give the place of one")
        handle = operations.broadcast(storable(tensors[place]), call, in_place=True)
        if len(tensors) > 1:
            afterwards(handle, lambda: copy_each(tensors, [tensors[place]] * len(tensors)))
        return self._start([handle], tensors, opts)

    @collective("allgather_", "all_gather", [2, 1], calls.ALLGATHER)
    def allgather(  # type: ignore[override]
        self, output_tensors: Lists, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        """Copy each rank's tensor, of any size, into the lists on all ranks. With several tensors on each rank, each
        list
        gets all of them."""
        count = len(input_tensors)
        if not count or len(output_tensors) != count:
            raise ArgumentError(
                f"allgather() was given {len(output_tensors)} lists for {count} tensors: give one for each"
            )
        for each in output_tensors:
            check_one_each(each, self._size * count)
        first, *others = output_tensors
        handle = self._moving.allgather([first[place::count] for place in range(count)], input_tensors)
        if others:
            afterwards(handle, lambda: [copy_each(each, first) for each in others])
        return self._start([handle], [target for targets in output_tensors for target in targets], opts)

    @collective("_allgather_base_", "_all_gather_base")
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        """Copy the ranks' tensors, of one size, into one tensor."""
        return self._start([self._gathered([output], [input])], [output], opts)

    @collective("allgather_into_tensor_coalesced_", "all_gather", [1, 1])
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Do what `all_gather_single` does for several tensors, with those of one dtype as one operation."""
        handles = [self._gathered(wholes, group) for group, wholes in groups(inputs, outputs)]
        return self._start(handles, outputs, opts)

    def _gathered(self, outputs: Tensors, inputs: Tensors) -> Handle:
        direct = self._repeated.allgather(outputs, inputs)
        return direct or self._moving.allgather([[output] for output in outputs], inputs)

    @collective("allgather_coalesced_", "all_gather", [2, 1])
    def allgather_coalesced(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work:
        """Copy each rank's tensors into the output list at the index of its rank."""
        check_one_each(outputs, self._size)
        targets = list(zip(*outputs, strict=True))
        handles = [self._moving.allgather(lists, group) for group, lists in groups(inputs, targets)]
        return self._start(handles, [each for targets in outputs for each in targets], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    @collective("gather_", "gather", [2, 1], calls.GATHER)
    def gather(  # type: ignore[override]
        self, output_tensors: Lists, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        """Copy each rank's tensor into the list of the rank `opts.rootRank` of the group."""
        root = self._root(opts)
        check_single("gather", input_tensors)
        results: Tensors = []
        if self._rank == root:
            check_single("gather", output_tensors)
            results = output_tensors[0]
        targets = results if self._rank == root else self._nothing
        handle = self._moving.exchange(self._only(root, input_tensors[0]), targets, input_tensors[0])
        return self._start([handle], results, opts)

    @collective("scatter_", "scatter", [1, 2], calls.SCATTER)
    def scatter(  # type: ignore[override]
        self, output_tensors: Tensors, input_tensors: Lists, opts: Any = None
    ) -> Work:
        """Copy one tensor to each rank, from the list on the rank `opts.rootRank` of the group."""
        root = self._root(opts)
        check_single("scatter", output_tensors)
        parts: Sequence[Tensor | None] = self._nothing
        if self._rank == root:
            check_single("scatter", input_tensors)
            parts = input_tensors[0]
        handle = self._moving.exchange(parts, self._only(root, output_tensors[0]), output_tensors[0])
        return self._start([handle], output_tensors, opts)

    @collective("alltoall_", "all_to_all", [1, 1])
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Work:
        """Copy a tensor from each rank to each rank."""
        check_one_each(input_tensors, self._size)
        handle = self._moving.exchange(input_tensors, output_tensors, input_tensors[0])
        return self._start([handle], output_tensors, opts)

    @collective("alltoall_base_", "all_to_all", (), calls.ALL_TO_ALL_SINGLE)
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Copy rows of a tensor to each rank: the numbers in the splits, or equal numbers without splits."""
        handle = self._moving.exchange_rows(output, input, output_split_sizes, input_split_sizes)
        return self._start([handle], [output], opts)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    @collective("barrier", "barrier", (), calls.BARRIER)
    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have called this."""
        handle = Handle(world.engine(), Call("barrier", process_set=self._set).request("uint8", ()), ())
        return self._start([handle], [], opts)

    def _root(self, opts: Any) -> int:
        """Return the root's rank in the group. Raises `ArgumentError` if there is no such rank."""
        root: int = 0 if opts is None else opts.rootRank
        if not 0 <= root < self._size:
            raise ArgumentError(
                f"rank {root} is not in process group {self._standing.label!r}: give a rank of the group from 0 to "
                f"{self._size - 1}"
            )
        return root

    def _only(self, rank: int, tensor: Tensor) -> list[Tensor | None]:
        """Return a tensor for one rank, and nothing for the others."""
        return [tensor if each == rank else None for each in range(self._size)]


def _op(opts: Any) -> dist.ReduceOp:
    return SUM if opts is None else opts.reduceOp
