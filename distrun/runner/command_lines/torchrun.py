"""The command line of torchrun."""

from __future__ import annotations

from distrun.runner.command_lines.table import Becomes, Holds, Program, flag

PROGRAM = Program(
    "torchrun",
    (
        flag("--nproc-per-node --nproc_per_node N", Becomes("-np {}")),
        flag("--standalone", Holds("a job on one host needs no more")),
    ),
    defaults=("--no-tag-output", "-np", "1"),
    abbreviations=True,
)
