"""The command line of horovodrun."""

from __future__ import annotations

from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, Refused, flag

_NO_CYCLE = "there is no cycle to wait for"
_NO_ELASTIC = "the number of ranks is fixed, there is no elastic training yet: leave it out, and give -np N"

PROGRAM = Program(
    "horovodrun",
    (
        flag("-v --version", Becomes("--version")),
        flag("-np --num-proc N", Becomes("-np {}")),
        flag("-H --hosts LIST", Becomes("--hosts {}", joined=True)),
        flag("-hostfile --hostfile FILE", Becomes("--hostfile {}")),
        flag("-p --ssh-port PORT", Becomes("--ssh-port {}")),
        flag("-i --ssh-identity-file FILE", Becomes("--ssh-identity-file {}")),
        flag("--start-timeout S", Becomes("--start-timeout {}")),
        flag("--network-interfaces --network-interface LIST", Becomes("--network {}", joined=True)),
        flag("--output-filename DIR", Becomes("--output-dir {}")),
        flag("--verbose", Becomes("--verbose")),
        flag("--gloo", Holds("no MPI is needed")),
        flag("--mpi", Becomes("--launcher mpirun")),
        flag("--cycle-time-ms T", Ignored(_NO_CYCLE)),
        flag("--min-np --min-num-proc N", Refused(_NO_ELASTIC)),
    ),
    abbreviations=True,
)
