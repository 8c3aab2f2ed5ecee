"""The options of elastic jobs, and what of other options does not go with them."""

from __future__ import annotations

import sys

import pytest

PYTHON = (sys.executable, "-c", "import os; print(sorted(n for n in os.environ if 'CONTROL' in n or 'SPARE' in n))")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["-np", "2", "--min-np", "3"], "-np 2 is not between --min-np 3 and --max-np 2"),
        (["-np", "4", "--max-np", "3"], "-np 4 is not between --min-np 4 and --max-np 3"),
        (["-np", "3", "-H", "localhost:2", "--elastic"], "-np 3 asks for more ranks than the 2 slots of localhost:2"),
        (["--elastic", "--launcher", "mpirun"], "--launcher mpirun does not go with an elastic job"),
        (["--elastic", "--tf-config", "--ps", "1"], "--ps 1 does not go with an elastic job"),
        (["--elastic", "--stdin", "0"], "--stdin 0 does not go with an elastic job"),
        (["--elastic", "--map-by", "node"], "--map-by node does not go with an elastic job"),
        (["--elastic", "-x", "DISTRUN_BACKEND=mpi"], "DISTRUN_BACKEND='mpi' does not go with an elastic job"),
        (["--elastic", "--nnodes", "2", "--rdzv-endpoint", "a"], "--nnodes 2 starts a launcher on each node"),
        (["--hosts-from", "x", "-H", "a"], "--hosts-from 'x' and the hosts a exclude each other"),
        (["--hosts-from", "x"], "--hosts-from 'x' does not say how many ranks to start with"),
        (["--hosts-from", "./none", "-np", "1"], "--hosts-from './none' cannot be executed"),
        (["--cooldown", "20,10"], "--cooldown '20,10' is no pair of seconds that rise"),
        (["--min-np", "0"], "'--min-np'"),
    ],
)
def test_what_cannot_be_costs_one_sentence_and_status_2(distrun, options, sentence):
    job = distrun(*options, *PYTHON)
    assert job.wait() == 2
    assert sentence in job.stderr.data.decode()
    assert job.stderr.data.count(b"\n") == 1


def test_horovods_variable_is_read_in_its_mode(distrun):
    job = distrun("--horovod", "--min-np", "1", *PYTHON, HOROVOD_ELASTIC_TIMEOUT="soon")
    assert job.wait() == 2
    assert b"HOROVOD_ELASTIC_TIMEOUT='soon' is no number of seconds >= 1" in job.stderr.data


def test_that_no_restarts_are_wanted_makes_no_elastic_job(distrun):
    job = distrun("--max-restarts", "0", "--no-tag-output", "-np", "1", *PYTHON)
    assert job.wait() == 0
    assert job.stdout.data == b"[]\n"


def test_a_dry_run_shows_the_first_ranks_and_the_limits(distrun):
    job = distrun("--dry-run", "-np", "2", "--min-np", "1", "--spares", "1", "-H", "localhost:3", *PYTHON)
    assert job.wait() == 0
    assert b"rank 1(2)" in job.stdout.data
    assert b"elastic: 2 ranks, from 1 to 2 later on; 10 failures within 3600 s; 1 spare per host" in job.stdout.data
    job = distrun("--dry-run", "-np", "2", "--hosts-from", "echo a:2", *PYTHON)
    assert job.wait() == 0
    assert job.stdout.data.endswith(b"hosts now: a:2\n")


def test_of_commands_that_are_no_python_there_are_no_spares(distrun):
    job = distrun("--spares", "2", "-np", "1", "sh", "-c", "test $DISTRUN_RESTART = 1")
    assert job.wait() == 0
    assert b"there are no spares of 'sh', which is no Python program" in job.stderr.data
    job.assert_gone()
