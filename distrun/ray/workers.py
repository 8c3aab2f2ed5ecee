"""The workers of an executor: starting them by Ray, making them the ranks of a world, and ending them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distrun.contract import horovod as horovod_mode
from distrun.errors import LaunchError, UsageError
from distrun.ray.options import WorkerRequest
from distrun.ray.placement import WorkerFacts, listed, rank_order
from distrun.ray.room import Room
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
