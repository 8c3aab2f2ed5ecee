"""The last lines of a failure report: what every rank was doing when the first one failed."""

from __future__ import annotations

import re

import pytest

INPUT = """
import os, sys, time
import distrun, distrun.data
import numpy as np

distrun.init()

def batches():
    for step in range(10):
        if step == 3 and distrun.rank() == 1:
            while len(os.listdir(os.environ["WAITING"])) < distrun.size() - 1:
                time.sleep(0.01)
            time.sleep(1.0)  # the others have been waiting for some time then
            {fault}
        yield np.ones(4, np.float32)

for step, batch in enumerate(distrun.data.watch(batches())):
    if step == 3:
        open(os.path.join(os.environ["WAITING"], str(distrun.rank())), "w").close()
    distrun.allreduce_(batch, name="gradient")
"""
KILLED = "os.kill(os.getpid(), 9)"


@pytest.fixture
def waiting(tmp_path):
    """The variable that names a folder in which ranks leave a file when they come to wait for the one that fails."""
    folder = tmp_path / "waiting"
    folder.mkdir()
    return {"WAITING": str(folder)}


def what_ranks_did(said):
    """Return the sentences on what ranks were doing: which, what, the seconds, and the rest."""
    return re.findall(r"distrun: (ranks? [\d, -]+) (had been .*) for ([\d.]+) s(.*)\n", said.decode())


@pytest.mark.gate
def test_a_failure_tells_what_every_rank_was_doing(distrun, python, waiting):
    said = distrun("-np", "3", *python(INPUT.format(fault=KILLED)), **waiting).ended(137)
    told = [line for line in what_ranks_did(said) if "waiting" in line[1]]
    assert [(ranks, what) for ranks, what, _, _ in told] == [
        ("rank 1", "had been waiting for its next batch"),
        ("ranks 0, 2", "had been waiting for allreduce 'gradient'"),
    ]
    assert all(float(seconds) >= 0.4 for _, _, seconds, _ in told)


def test_it_is_told_of_a_job_that_takes_too_long(distrun, python):
    code = "import distrun, time\ndistrun.init()\nif distrun.rank():\n    time.sleep(100)\ndistrun.barrier()"
    said = distrun("-np", "2", "--timeout", "10", *python(code)).ended(124)
    found = {ranks: what for ranks, what, _, _ in what_ranks_did(said)}
    assert found["rank 0"] == "had been waiting for unnamed barrier"
    assert found["rank 1"] == "had been busy with the script's own code"


def test_it_is_told_of_the_present_members_of_an_elastic_job(distrun, python, waiting):
    options = ("-np", "2", "--elastic", "--max-restarts", "0")
    said = distrun(*options, *python(INPUT.format(fault=KILLED)), **waiting).ended(137)
    assert ("rank 1", "had been waiting for its next batch") in [line[:2] for line in what_ranks_did(said)]


def test_nothing_is_told_where_nothing_is_recorded(distrun, python, waiting):
    job = distrun("-np", "2", *python(INPUT.format(fault=KILLED)), DISTRUN_EVENTS="0", **waiting)
    assert what_ranks_did(job.ended(137)) == []


def test_nothing_is_told_of_scripts_that_never_join(distrun, python):
    job = distrun("-np", "2", *python("import os, time\nos.environ['RANK'] == '1' and os._exit(3)\ntime.sleep(100)"))
    assert what_ranks_did(job.ended(3)) == []
