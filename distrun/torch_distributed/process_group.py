"""The process group of the backend: its collectives, its messages, and its subgroups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import Work, distributed_c10d

from distrun.errors import StallError
from distrun.host.ranks import list_ranks
from distrun.torch_distributed.collectives import Collectives, Tensors
from distrun.torch_distributed.interface.calls import ArgumentError, collective
from distrun.torch_distributed.interface.group import NamedGroup
from distrun.torch_distributed.interface.native_work import PythonWork, leave_uncompiled
from distrun.torch_distributed.interface.operators import replace_functions, serve_operators
from distrun.torch_distributed.members import Members, all_ranks, beside, some_ranks
from distrun.torch_distributed.work import DistrunWork

if TYPE_CHECKING:
    from distrun.torch_distributed.point_to_point import PointToPoint


def create(store: Store, rank: int, size: int, timeout: timedelta) -> DistrunProcessGroup:
    """Return the process group of all `size` ranks, as rank `rank`. Raises as `joining.join` does."""
    return DistrunProcessGroup(store, rank, size, timeout, all_ranks(store, rank, size, timeout))


def create_described(options: Any) -> DistrunProcessGroup:
    """Return a process group as torch's `_DistributedBackendOptions` describe it: of some ranks, or of all."""
    store, rank, size, timeout = options.store, options.group_rank, options.group_size, options.timeout
    if not options.global_ranks_in_group:
        return create(store, rank, size, timeout)
    ranks, name = list(options.global_ranks_in_group), options.group_id
    if isinstance(distributed_c10d._get_default_group(), DistrunProcessGroup):
        members = some_ranks(ranks, name)
    else:
        members = beside(store, ranks, rank, timeout, name)
    return DistrunProcessGroup(store, rank, size, timeout, members, name)


DEFAULT = "default_pg"
"""The name that torch gives the group of all ranks."""

_ANSWER_TIME = 10.0  # seconds that the first rank has after the timeout of a barrier to report the missing ranks


class DistrunProcessGroup(Collectives):
    """A process group on distrun."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, members: Members, name: str = DEFAULT
    ) -> None:
        """For the arguments see `Collectives`."""
        super().__init__(store, rank, size, timeout, members, name)
        replace_functions(DistrunProcessGroup)
        serve_operators(DistrunProcessGroup)
        self._messages: PointToPoint | None = None
        self._barriers = 0

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have called this.

        Raises:
            StallError: some ranks have not called it in time. The text lists them, whatever `wait_all_ranks` is.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout or self._timeout
        self._barriers += 1
        key = f"distrun/monitored_barrier/{self._members.unique_name}/{self._barriers}"
        store, verdict, ranks = self._store, f"{key}/verdict", self._members.ranks
        store.set(f"{key}/{self._rank}", "here")
        if self._rank == 0:
            missing = _missing(store, key, self._size, seconds)
            who = list_ranks([ranks[each] for each in missing]) if missing else ""
            store.set(verdict, who)
        else:
            try:
                store.wait([verdict], timedelta(seconds=seconds + _ANSWER_TIME))
                who = store.get(verdict).decode()
            except RuntimeError:  # each kind of store raises a subclass of its own
                who = list_ranks([ranks[0]])
        if who:
            raise StallError(
                f"monitored_barrier of process group {self._standing.label!r}: {who} did not call it within "
                f"{seconds:g} s: see where they are, or give it a longer `timeout`"
            )

    # Messages ---------------------------------------------------------------------------------------------------------

    @collective("send", "send", [1])
    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        return self._point_to_point().send(tensors, destination, tag, self._timeout)

    @collective("recv_", "recv", [1])
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        return self._point_to_point().receive(tensors, source, tag, self._timeout)

    @collective("recv_any_source_", "recvAnySource", [1])
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive a tensor from any rank. The work knows its `source_rank`."""
        return self._point_to_point().receive(tensors, None, tag, self._timeout)

    def _point_to_point(self) -> PointToPoint:
        if self._messages is None:
            from distrun.torch_distributed.point_to_point import PointToPoint  # here, since most programs send nothing

            self._messages = PointToPoint(self._members, self._rank, self._standing.label)
        return self._messages

    # The group --------------------------------------------------------------------------------------------------------

    def split_group(  # type: ignore[override]  # with the names that C++ has
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
    ) -> DistrunProcessGroup | None:
        """Return a process group of some ranks of this one; None on other ranks, which need not call this.

        Args:
            ranks: their ranks in this group, in the order of their ranks in the new one.
            timeout: how long an operation may take; by default, as long as in this group.
            opts: options of other backends, ignored.
            group_name: the name of the group, the same on all its ranks.
            group_desc: a description of the group.

        Raises:
            ArgumentError: `ranks` is empty, has a rank that is not in the group, or has one twice.
        """
        if not ranks or len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self._size)):
            raise ArgumentError(
                f"ranks {list(ranks)} cannot be split off process group {self._standing.label!r}: give ranks from 0 to "
                f"{self._size - 1}, each once"
            )
        self._splits += 1
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{self._splits}"
        members = some_ranks([self._members.ranks[rank] for rank in ranks], name)
        seconds = timeout or timedelta(seconds=self._timeout)
        store = PrefixStore(f"{name}/", self._store)
        group = DistrunProcessGroup(store, list(ranks).index(self._rank), len(ranks), seconds, members, name)
        group.setGroupDesc(group_desc or f"{self._description}:split:{self._splits}")
        return group

    def splitGroup(  # noqa: N802 - as C++ calls it
        self, ranks: Sequence[int], timeout: Any, opts: Any, name: Any, desc: Any, devices: Any = None
    ) -> DistrunProcessGroup | None:
        """Do what `split_group` does."""
        return self.split_group(ranks, timeout, opts, name, desc)

    def shutdown(self) -> None:
        """Leave the group."""
        self._repeated.forget()
        self._members.leave()

    def abort(self) -> None:
        """Leave the group at once. If this is the group of all ranks, pending operations fail."""
        self._repeated.forget()
        self._members.leave(is_aborting=True)


def _missing(store: Store, key: str, size: int, timeout: float) -> list[int]:
    """Return the ranks of a group that have not set their keys when the timeout is over."""
    deadline = time.monotonic() + timeout
    keys = [f"{key}/{rank}" for rank in range(size)]
    for each in keys:
        left = deadline - time.monotonic()
        try:
            store.wait([each], timedelta(seconds=max(left, 0.001)))
        except RuntimeError:
            break
    else:
        return []
    return [rank for rank, each in enumerate(keys) if not store.check([each])]


for _kind in (NamedGroup, Collectives, DistrunProcessGroup, PythonWork, DistrunWork):
    leave_uncompiled(_kind)
