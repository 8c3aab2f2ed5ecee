"""The workers of an executor and their placement group: starting them, making them ranks of a world, ending them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distrun.contract import horovod as horovod_mode
from distrun.errors import LaunchError, UsageError
from distrun.ray.options import WorkerRequest
from distrun.ray.placement import WorkerFacts, bundles, capacity, listed, rank_order
from distrun.ray.worker import Worker
from distrun.ray.world import rank_environs
from distrun.runner.planning.variables.environ import forwarded_settings

_OWN_GROUP = "use_current_placement_group=False makes a new one"
_FAREWELL = 5.0  # seconds that workers have to exit by themselves


class Workers:
    """The running workers, in rank order. Ray is initialised unless it has been."""

    def __init__(self, request: WorkerRequest, env: Mapping[str, str]) -> None:
        """Start the workers and make each a rank.

        Args:
            request: the workers to start.
            env: their further variables.

        Raises:
            UsageError: nodes have different versions of distrun, or the current placement group has no such bundle.
            LaunchError: Ray has no resources for the workers in time, or one of them cannot be started.
        """
        if not ray.is_initialized():
            ray.init()
        self._session = _session()
        self._room = Room(request)
        self.actors: list[Any] = []
        self.facts: list[WorkerFacts] = []
        try:
            self._start(request)
            self._become_ranks(request, env)
        except BaseException:
            self.kill()
            raise

    def are_connected(self) -> bool:
        """Return whether this process is still in the Ray session of the workers."""
        return ray.is_initialized() and _session() == self._session

    def end(self) -> None:
        """Let all workers exit by themselves, and kill those that do not in time."""
        if self.are_connected() and self.actors:
            ends = [actor.__ray_terminate__.remote() for actor in self.actors]
            ray.wait(ends, num_returns=len(ends), timeout=_FAREWELL)
        self.kill()

    def kill(self) -> None:
        """Kill all workers, and release their placement group."""
        if self.are_connected():
            for actor in self.actors:
                with suppress(RayError):
                    ray.kill(actor)
        self._room.give_back()

    def _start(self, request: WorkerRequest) -> None:
        actor = ray.remote(Worker).options(
            num_cpus=request.cpus_per_worker,
            num_gpus=request.gpus_per_worker,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._room.group),
            max_restarts=0,
        )
        try:
            self.actors = [actor.remote() for _ in range(request.num_workers)]
        except ValueError as error:
            raise UsageError(f"the current placement group does not fit ({_OWN_GROUP}): {error}") from None
        timeout = request.settings.placement_group_timeout_s
        try:
            facts = ray.get([each.facts.remote() for each in self.actors], timeout=timeout)
        except GetTimeoutError:
            raise LaunchError(
                f"the {request.num_workers} workers of {listed(request.resources)} have not started in {timeout:g} s: "
                f"the current placement group may have no room for them ({_OWN_GROUP})"
            ) from None
        except RayError as error:
            raise LaunchError(
                f"a worker could not be started; distrun must be installed on all nodes: {error}"
            ) from None
        order = rank_order(facts)
        self.actors = [self.actors[index] for index in order]
        self.facts = [facts[index] for index in order]

    def _become_ranks(self, request: WorkerRequest, env: Mapping[str, str]) -> None:
        mode = {horovod_mode.MODE: "1"} if request.horovod else {}
        timeout_s = request.settings.timeout_s
        waiting = {} if timeout_s is None else {"DISTRUN_START_TIMEOUT": f"{timeout_s:g}"}
        common = {**forwarded_settings(os.environ), **mode, **waiting, **env}
        environs = rank_environs(self.facts, common, request.horovod, request.network)
        ray.get([actor.begin.remote(environ) for actor, environ in zip(self.actors, environs, strict=True)])


def _session() -> tuple[str, str]:
    """Return the cluster and this process's job there, which is a new one after each `ray.init`."""
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


# The placement group: the current one, or a new one that is removed at the end ----------------------------------------


class Room:
    """A placement group. One that was made for the workers is removed at the end, or when nothing refers to it."""

    def __init__(self, request: WorkerRequest) -> None:
        """Use the current placement group if the request allows it and there is one; make one otherwise, for which Ray
        must have the resources in time.
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
    spread = f" on {request.num_hosts} nodes" if request.num_hosts is not None else ""
    fitting = capacity(bundle, nodes, strategy) * request.num_workers // len(bundles(request)[0])
    return (
        f"Ray has found no room for {request.num_workers} workers of {listed(request.resources)} in "
        f"{request.settings.placement_group_timeout_s:g} s{spread}: nodes in the cluster: {len(nodes)}, "
        f"with room for {fitting} of them if nothing else ran; free at the moment: "
        f"{listed({name: free.get(name, 0.0) for name in bundle})}. Ask for less, add nodes, or give it longer by "
        "create_settings(placement_group_timeout_s=...)"
    )
