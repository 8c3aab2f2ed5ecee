"""`horovod.run`: runs a function on all ranks, from within a Python program."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrun.errors import UsageError


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` ranks, and return the results by rank: see `distrun.run`.

    With `min_num_proc`, `max_num_proc` or `host_discovery_script` the job is elastic.

    `disable_cache` and `use_gloo` change nothing. `executable` is the Python on other hosts.

    Raises:
        UsageError: mpirun is requested, or the request cannot be met.
        Exception: the exception of the first rank that failed.
    """
    from distrun.runner.launch import function  # not at the top: every rank imports this module
    from distrun.runner.planning.ssh_config import SshOptions

    ranks = num_proc if np is None else np
    least = min_np if min_num_proc is None else min_num_proc
    most = max_np if max_num_proc is None else max_num_proc
    is_elastic = least is not None or most is not None or host_discovery_script is not None
    if use_mpi or mpi_args:
        given = f"use_mpi={use_mpi}" if use_mpi else f"mpi_args={mpi_args!r}"
        raise UsageError(
            f"horovod.run: {given} cannot be, since mpirun starts commands and no functions: leave it out, or start a "
            "script with distrun --horovod --launcher mpirun"
        )
    network = network_interfaces or network_interface or ""
    listed = network if isinstance(network, str) else ",".join(network)
    return function.run(
        func,
        args,
        kwargs,
        np=max(ranks, least or 1),
        hosts=hosts,
        hostfile=hostfile,
        env={"DISTRUN_NETWORK": listed} if listed else None,
        slots=slots,
        ssh=SshOptions(port=ssh_port, identity=ssh_identity_file, python=_python(executable)),
        output_dir=output_filename,
        horovod=True,
        verbose=bool(verbose),
        start_timeout=60.0 if start_timeout is None else float(start_timeout),
        min_np=least,
        max_np=most,
        hosts_from=host_discovery_script,
        # Both are limits of elastic jobs, but do not make a job elastic.
        reset_limit=reset_limit if is_elastic else None,
        cooldown=(cooldown_range[0], cooldown_range[1]) if is_elastic and cooldown_range else None,
    )


def _python(executable: str | None) -> str | None:
    return None if executable == sys.executable else executable
