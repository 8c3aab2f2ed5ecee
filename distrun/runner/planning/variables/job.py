"""The variables that a request asks for: for all ranks, for the ranks of a host, and the maker of each rank's own."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.contract import horovod, settings as names
from distrun.errors import UsageError
from distrun.host.ranks import count
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.variables.environ import (
    AUTO,
    forwarded_variables,
    inherited_variables,
    requested_variables,
    thread_variables,
)
from distrun.runner.planning.variables.ranks import RankVariables


@dataclass(frozen=True)
class CommonVariables:
    """The variables that do not depend on host or rank."""

    inherited: dict[str, str]
    """The launcher's variables, with the settings that the user asks for."""
    exports: dict[str, str]
    """The variables of `-x`."""
    notes: list[str]

    def network(self, request: LaunchRequest) -> str:
        """Return the interfaces and subnets that ranks of different hosts may use. Empty = all."""
        return request.network or self.exports.get(names.NETWORK) or self.inherited.get(names.NETWORK, "")


def common_variables(request: LaunchRequest, context: LaunchContext) -> CommonVariables:
    """Return the variables that do not depend on host or rank, and notes for the user."""
    inherited = {**inherited_variables(context.environ), **settings(request)}
    return CommonVariables(inherited, *requested_variables(request.exports, inherited))


def settings(request: LaunchRequest) -> dict[str, str]:
    """Return the variables of the settings that the user asks for."""
    times = {
        names.STALL_WARNING: request.stall_warning,
        names.STALL_TIMEOUT: request.stall_timeout,
        names.START_TIMEOUT: request.start_timeout,
        names.KEEPALIVE: request.keepalive,
    }
    chosen = {
        names.NETWORK: request.network,
        names.WIRE_DTYPE: request.wire_dtype,
        names.ALGORITHM: request.algorithm,
        names.ENCRYPT: "1" if request.encrypt else None,
        names.SCALARS: "10" if request.scalars else None,
        names.AUTOTUNE: "1" if request.autotune else None,
        names.AUTOTUNE_LOG: request.autotune_log,
        names.AUTOTUNE_WIRE_DTYPES: ",".join(request.autotune_wire_dtypes),
        horovod.MODE: "1" if request.horovod else None,
        names.HINTS: "0" if request.quiet else None,
        names.TORCH_BACKEND: "1" if request.torch_backend else None,
    }
    given = {name: value for name, value in chosen.items() if value}
    numbers = {name: f"{value:g}" for name, value in times.items() if value is not None}
    return {**given, **numbers, **request.timeline}


def host_variables(
    host: Host, ranks: int, request: LaunchRequest, context: LaunchContext, variables: CommonVariables
) -> dict[str, str]:
    """Return the variables that all ranks of a host, which share its cores, have in common.

    Raises:
        UsageError: the host has too few GPUs.
    """
    inherited, exports = variables.inherited, variables.exports
    remote = host.name in context.routes
    common = {
        **(forwarded_variables(inherited) if remote else inherited),
        **_gpus(host, ranks, request.share_gpus),
        **exports,
    }
    common |= {} if remote else horovod.search_path(common)
    chosen = {"OMP_NUM_THREADS": AUTO} if remote else thread_variables(common, context.cores, ranks)
    # Strings then have the same hash on all ranks, so that a set of strings has the same order: `distrun.auto` relies
    # on it.
    hashing = {"PYTHONHASHSEED": "0"} if request.auto else {}
    # Ranks write no timelines of their own if the launcher writes one.
    timeline = {names.TIMELINE: ""} if request.writes_timeline and common.get(names.TIMELINE) else {}
    return {"PYTHONUNBUFFERED": "1", **hashing, **chosen, **common, **timeline}


def _gpus(host: Host, ranks: int, share: bool) -> dict[str, str]:
    """Return the variables that tell ranks which GPUs are listed for their host."""
    if host.gpus and ranks > len(host.gpus) and not share:
        raise UsageError(
            f"{ranks} ranks on {host.name} are more than its {count(len(host.gpus), 'GPU')} {','.join(host.gpus)}: "
            "list more, lower its slots, or give --share-gpus"
        )
    listed = {"CUDA_VISIBLE_DEVICES": ",".join(host.gpus)} if host.gpus else {}
    return {**listed, **({"DISTRUN_SHARE_GPUS": "1"} if share else {})}


def rank_variables(request: LaunchRequest, context: LaunchContext, variables: CommonVariables) -> RankVariables:
    """Return the maker of the ranks' variables."""
    count = context.environ.get("SLURM_RESTART_COUNT", "")
    return RankVariables(
        context.job,
        context.key,
        frozenset(variables.exports),
        openmpi=request.openmpi_env,
        torchrun=request.torchrun_env,
        name=request.name,
        horovod=request.horovod,
        tf_config=request.tf_config,
        restarts=int(count) if count.isdecimal() else 0,
    )
