"""The placement group of the workers: the current one, or a new one that is removed at the end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group

from distrun.errors import LaunchError
from distrun.ray.options import WorkerRequest
from distrun.ray.placement import bundles, capacity, listed


class Room:
    """A placement group. One that was made for the workers is removed at the end, or when nothing refers to it."""

    def __init__(self, request: WorkerRequest) -> None:
        """Use the current placement group if the request allows it and there is one; make one otherwise.

        Raises:
            LaunchError: Ray has no resources for the workers in time.
        """
        self.group: Any = get_current_placement_group() if request.use_current_placement_group else None
        self._forgotten: weakref.finalize[[Any], Room] | None = None
        if self.group is not None:
            return
        wanted, strategy = bundles(request)
        self.group = placement_group(wanted, strategy=strategy)
        self._forgotten = weakref.finalize(self, _remove_aside, self.group)
        self._forgotten.atexit = False  # Ray removes the placement groups of a process that ends
        try:
            if not self.group.wait(request.settings.placement_group_timeout_s):
                raise LaunchError(_no_room(request, wanted[0], strategy))
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Remove the placement group, if it was made here."""
        if self._forgotten is not None and self._forgotten.detach():
            _remove(self.group)


def _remove(group: Any) -> None:
    if ray.is_initialized():
        with suppress(Exception):  # the cluster may be gone, or `ray.shutdown` called meanwhile
            remove_placement_group(group)


def _remove_aside(group: Any) -> None:
    """Remove a group from a new thread: the garbage collector may run in any thread, even in one of Ray's that the
    removal would wait for."""
    threading.Thread(target=_remove, args=(group,), daemon=True).start()


def _no_room(request: WorkerRequest, bundle: Mapping[str, float], strategy: str) -> str:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    free = ray.available_resources()
    fitting = capacity(bundle, nodes, strategy) * request.num_workers // len(bundles(request)[0])
    return (
        f"Ray has found no room for {request.num_workers} workers of {listed(request.resources)} in "
        f"{request.settings.placement_group_timeout_s:g} s{_spread(request)}: nodes in the cluster: {len(nodes)}, "
        f"with room for {fitting} of them if nothing else ran; free at the moment: "
        f"{listed({name: free.get(name, 0.0) for name in bundle})}. Ask for less, add nodes, or give it longer by "
        "create_settings(placement_group_timeout_s=...)"
    )


def _spread(request: WorkerRequest) -> str:
    return f" on {request.num_hosts} nodes" if request.num_hosts is not None else ""
