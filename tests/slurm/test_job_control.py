"""Ctrl-Z within an allocation of a real Slurm: the ranks stop on all nodes, for longer than the keepalive, and go on.

The launcher is typed at a shell on a terminal: the one of `salloc`, on the machine where users log in, and the one of
`srun --pty bash`, on a node.
"""

from __future__ import annotations

import shlex
import sys

import pytest
from machines.namespaces import command_line
from machines.rank_programs import COUNTING
from shell import Shell, assert_stops_end_nothing, wait_until

KEEPALIVE = 3
WORKING = COUNTING.format(elements=100_000, pause=0.01)
INSIDE = "srun --quiet --nodes=1 --ntasks=1 --pty bash --norc --noprofile --noediting -i"


@pytest.fixture(params=[pytest.param("salloc", marks=pytest.mark.gate), "srun --pty"])
def shell(request, slurm, allocation):
    made = Shell(**allocation.environ)
    if request.param == "srun --pty":
        made.type(f"{INSIDE}\n")
        made.type("echo on $(uname -n)\n")
        made.wait_for("on alpha")
    yield made
    if request.param == "srun --pty":
        made.type("exit\n")
        slurm.assert_no_process()
    made.close()


def ranks(slurm):
    return [process for process in slurm.all_processes() if command_line(process)[1:] == ["-c", WORKING]]


def test_a_stop_that_is_longer_than_the_keepalive_ends_nothing(shell, slurm):
    words = ["--slots", "2", "--keepalive", str(KEEPALIVE), "--stall-timeout", "6", "--stall-warning", "0"]
    shell.type(shlex.join([sys.executable, "-m", "distrun.runner", *words, sys.executable, "-c", WORKING]) + "\n")
    shell.wait_for("[3] step 5")
    assert len(ranks(slurm)) == 4
    assert_stops_end_nothing(shell, lambda: ranks(slurm), KEEPALIVE)
    wait_until(lambda: not ranks(slurm) and not slurm.agents())
