"""The command of a rank that mpirun starts, with the variables that distrun gives its own ranks."""

from __future__ import annotations

from collections.abc import Sequence

from distrun.runner.planning.mpirun.program import MpiImplementation

# The names that MPIs have for RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
_OPENMPI_NAMES = ("COMM_WORLD_RANK", "COMM_WORLD_SIZE", "COMM_WORLD_LOCAL_RANK", "COMM_WORLD_LOCAL_SIZE")
_HYDRA_NAMES = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# `sh -c` runs this script in each rank, and it runs the rank's own command. GROUP_RANK is the index of the host among
# the hosts that have a rank with this local rank. If --mpi-args do not place ranks host by host, it is unknown and
# unset.
_RANK_SCRIPT = """\
export RANK="${rank}" WORLD_SIZE="${size}" LOCAL_RANK="${local_rank}" LOCAL_WORLD_SIZE="${local_size}" GROUP_RANK=0; \
first=0; \
for count in {counts}; do \
[ $RANK -lt $((first + count)) ] && break; \
[ $LOCAL_RANK -lt $count ] && GROUP_RANK=$((GROUP_RANK + 1)); \
first=$((first + count)); \
done; \
[ $LOCAL_RANK -eq $((RANK - first)) ] || unset GROUP_RANK; \
exec "$@\""""


def as_rank(mpi: MpiImplementation, command: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Return `command` wrapped in a shell that sets RANK and the like, for scripts of other frameworks.

    Args:
        mpi: the MPI whose mpirun runs it.
        command: the user's command.
        counts: the number of ranks on each host.
    """
    names = _HYDRA_NAMES if mpi.is_hydra else [f"OMPI_{name}" for name in _OPENMPI_NAMES]
    told = dict(zip(("rank", "size", "local_rank", "local_size"), (f"{{{name}}}" for name in names), strict=True))
    return ["sh", "-c", _RANK_SCRIPT.format(counts=" ".join(map(str, counts)), **told), "sh", *command]
