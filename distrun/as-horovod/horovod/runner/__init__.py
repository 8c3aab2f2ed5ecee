"""`horovod.run`: calling a function on all ranks, from within a Python program."""

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

    `disable_cache` and `use_gloo` change nothing. `executable` is the Python on other hosts.

    Raises:
        UsageError: elastic training or mpirun is asked for, or the request cannot be met.
        Exception: the exception of the first rank that failed.
    """
    from distrun.runner import function  # not before: every rank imports this module
    from distrun.runner.planning.ssh_config import SshOptions

    ranks = num_proc if np is None else np
    _refuse_elastic(
        ranks,
        min_num_proc=min_np if min_num_proc is None else min_num_proc,
        max_num_proc=max_np if max_num_proc is None else max_num_proc,
        reset_limit=reset_limit,
        cooldown_range=cooldown_range,
        host_discovery_script=host_discovery_script,
    )
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
        np=ranks,
        hosts=hosts,
        hostfile=hostfile,
        env={"DISTRUN_NETWORK": listed} if listed else None,
        slots=slots,
        ssh=SshOptions(port=ssh_port, identity=ssh_identity_file, python=_python(executable)),
        output_dir=output_filename,
        horovod=True,
        verbose=bool(verbose),
        start_timeout=60.0 if start_timeout is None else float(start_timeout),
    )


def _refuse_elastic(ranks: int, **options: Any) -> None:
    for name, value in options.items():
        if value is not None and not (name in ("min_num_proc", "max_num_proc") and value == ranks):
            raise UsageError(
                f"horovod.run: {name}={value!r} asks for elastic training, which is not there yet: leave it out, and "
                "give num_proc"
            )


def _python(executable: str | None) -> str | None:
    return None if executable == sys.executable else executable
