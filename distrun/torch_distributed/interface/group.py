"""The part of a process group that is not collectives: its names, its timeout, its devices."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup

from distrun.errors import NotOfferedError
from distrun.runtime.operations.request import CUDA
from distrun.runtime.world import world
from distrun.torch_distributed.group_health import GroupHealth


class NamedGroup(ProcessGroup):
    """A process group without collectives. It keeps its names itself, since torch keeps names in C++, where a group in
    Python has no place for them."""

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        """
        Args:
            store: shared by the ranks of the group.
            rank, size: this rank's place in the group, and the number of its ranks.
            timeout: how long an operation may take.
            name: torch's name of the group, the same on all its ranks.
        """
        super().__init__(rank, size)  # type: ignore[call-arg]  # makes a group whose methods Python may override
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout.total_seconds()
        self._name = name
        self._description = "undefined"
        self._standing = GroupHealth(name)
        self._sequence = 0  # the number of the last operation; the first one is 1
        self._splits = 0

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend."""
        return "distrun"

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name by which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the name by which torch finds the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description of the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Set the description of the group. torch passes "undefined" if the user has given none."""
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

    def _backend_id(self, backend_type: Any) -> int:
        return self._id()  # type: ignore[attr-defined, no-any-return]

    def _has_hooks(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def get_group_store(self) -> Store:
        """Return the store that the ranks of the group share."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long an operation that starts later may take."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout


def _refused(name: str, remedy: str) -> Callable[..., Any]:
    def refuse(self: NamedGroup, *args: Any, **kwargs: Any) -> Any:
        raise NotOfferedError(f"{name} of a process group is not offered by backend 'distrun': {remedy}")

    return refuse


REFUSED = {
    "_start_coalescing": "call all_reduce_coalesced, or give the coalescing manager no device",
    "_end_coalescing": "call all_reduce_coalesced, or give the coalescing manager no device",
    "_register_on_completion_hook": "call `then` of the futures of works",
    "_wait_for_pending_works": "wait for the works",
    "merge_remote_group": "call new_group, or begin with all ranks",
    "mergeRemoteGroup": "call new_group, or begin with all ranks",
}
"""Methods that the backend does not offer, with the remedy."""

for _name, _remedy in REFUSED.items():
    setattr(NamedGroup, _name, _refused(_name, _remedy))
