"""`distrun-compat`: command lines of other launchers start real jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distrun.tools.doctor.build import ATTEMPTS, report

pytestmark = pytest.mark.gate

DEADLINE = 60.0
WHO = "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])"


def started(*words, program=(sys.executable, "-m", "distrun.compat"), stdin=b""):
    """The status, output and errors of a command line."""
    done = subprocess.run([*program, *words], input=stdin, capture_output=True, timeout=DEADLINE, check=False)
    return done.returncode, sorted(done.stdout.decode().splitlines()), done.stderr.decode()


def test_an_mpirun_starts_its_ranks_and_rank_0_has_the_input():
    read = "import os, sys; print(os.environ['RANK'], repr(sys.stdin.read()))"
    words = ("-n", "2", "--oversubscribe", "--mca", "pml", "ob1", "-x", "A=1", sys.executable, "-c", read)
    status, output, errors = started("mpirun", *words, stdin=b"text")
    assert (status, output) == (0, ["0 'text'", "1 ''"])
    assert errors.startswith("distrun: ignored: --mca pml ob1 (they tune the libraries of an MPI, which is not used)\n")


def test_a_horovodrun_of_two_ranks_starts_two_although_there_are_more_slots():
    who = "import os, horovod; print(os.environ['HOROVOD_RANK'], os.environ['HOROVOD_SIZE'])"
    status, output, errors = started("horovodrun", "-np", "2", "-H", "localhost:4", sys.executable, "-c", who)
    assert (status, output) == (0, ["[0] 0 2", "[1] 1 2"]), errors


def test_called_through_a_link_the_name_is_left_out(tmp_path):
    installed = Path(sys.executable).with_name("distrun-compat")
    if not installed.exists():
        pytest.skip("distrun-compat is not installed beside this Python: pip install -e .")
    link = tmp_path / "mpiexec"
    link.symlink_to(installed)
    status, output, _ = started("-n", "1", sys.executable, "-c", WHO, "a b", program=(str(link),))
    assert (status, output) == (0, ["0 1 a b"])


def test_what_cannot_be_met_costs_one_sentence_and_status_2():
    status, output, errors = started("mpirun", "-n", "2", "a", ":", "b")
    assert (status, output, errors.count("\n")) == (2, [], 1)
    assert "starts several programs" in errors


def test_each_program_has_a_help_that_lists_its_flags():
    assert "--fusion-threshold-mb M" in "\n".join(started("horovodrun", "--help")[1])


def test_the_controllers_are_tried_by_jobs():
    text = report([attempt for attempt in ATTEMPTS if attempt.group == "Controllers"])
    assert "[X] distrun's own" in text
    assert "] MPI" in text
