"""The command lines of mpirun and mpiexec: those of Open MPI, MPICH and Intel MPI together."""

from __future__ import annotations

from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, flag

PROGRAM = Program(
    "mpirun",
    (
        flag("-n -np -c N", Becomes("-np {}")),
        flag("-host -H -hosts LIST", Becomes("--hosts {}", joined=True)),
        flag("-hostfile -machinefile -machine -default-hostfile -f FILE", Becomes("--hostfile {}")),
        flag("-x NAME[=VALUE]", Becomes("-x {}")),
        flag("-wdir -wd DIR", Becomes("--wdir {}")),
        flag("-tag-output -prepend-rank -l", Becomes("--tag-output")),
        flag("-allow-run-as-root", Holds("root may start jobs")),
        flag("-mca NAME VALUE", Ignored("of Open MPI's libraries, which are not used")),
    ),
    defaults=("--no-tag-output",),
    any_dashes=True,
)
