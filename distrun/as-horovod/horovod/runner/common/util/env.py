"""The variables of the environment that give ranks their place, and which variables are passed on to ranks."""

import os
import re

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"}
"""Patterns of the variables that are not passed on."""
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

_PLACES = (("HOROVOD_RANK", "HOROVOD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def is_exportable(v: str) -> bool:
    """Return whether the variable of this name is passed on to ranks."""
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and size from the launcher's variables, or 0 and 1 without any.

    Raises:
        RuntimeError: only one of the two is set.
    """
    for names in _PLACES:
        found = [os.environ[name] for name in names if name in os.environ]
        if len(found) == 1:
            raise RuntimeError(f"only one of {names[0]} and {names[1]} is set: set both, or neither")
        if found:
            return int(found[0]), int(found[1])
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Return whether Kubeflow's MPI operator has started this process."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC  # noqa: SIM112 - Open MPI's name
