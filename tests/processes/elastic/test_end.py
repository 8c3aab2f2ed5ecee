"""Jobs of real processes that lose a rank at the very end, when another one has done its work already."""

from __future__ import annotations

import pytest

# Rank 1 is killed when it has come out of the last barrier and not said so, which is to be lost in it.
ELASTIC = """
import os, signal, sys, time
import distrun
from distrun import elastic
from distrun.elastic import loop

ORDER, FILE = sys.argv[1:]
distrun.init()
rank = distrun.rank()
print("starts", os.environ["DISTRUN_GENERATION"], flush=True)
barrier, finish = loop.collectives.barrier, loop.regroup.finish

def last_barrier(name):
    barrier(name=name)
    if rank == 1:
        if ORDER == "finished first":
            while not os.path.exists(FILE):
                time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

def say_finished():
    if rank == 0 and ORDER == "lost first":
        while os.path.exists(f"/proc/{PEER}"):
            time.sleep(0.005)
    finish()
    open(FILE, "w").close()

PEER = distrun.allgather_object(os.getpid())[1]
loop.collectives.barrier, loop.regroup.finish = last_barrier, say_finished
elastic.run(lambda state: None)(elastic.ObjectState(step=0))
print("saved", rank, flush=True)
"""

# Rank 1 is killed in `shutdown`, when rank 0 has left the job as well, but its interpreter has not.
PLAIN = """
import atexit, os, signal, time

def at_the_end():  # runs after distrun has left
    if rank == 0:
        open(FILE, "w").close()
        while os.path.exists(f"/proc/{PEER}"):
            time.sleep(0.005)

atexit.register(at_the_end)
import sys
import distrun

STATUS, FILE = int(sys.argv[1]), sys.argv[2]
distrun.init()
rank = distrun.rank()
print("starts", os.environ["DISTRUN_GENERATION"], flush=True)
PEER = distrun.allgather_object(os.getpid())[1]
distrun.barrier()
if os.environ["DISTRUN_GENERATION"] != "1":
    FILE, PEER, STATUS = os.devnull, 0, 0
elif rank == 1:
    while not os.path.exists(FILE):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(STATUS)
"""
ANEW = b"nothing is restarted, since rank 0 on localhost (pid "


@pytest.mark.parametrize("order", ["finished first", "lost first"])
def test_a_rank_that_is_lost_in_the_last_barrier_when_another_has_passed_it_ends_the_job(
    distrun, python, tmp_path, order
):
    job = distrun("--elastic", "-np", "2", "-H", "localhost:2", *python(ELASTIC), order, str(tmp_path / "passed"))
    assert job.wait() == 137
    assert job.stdout.data.count(b"starts") == 2
    assert b"rank 1 on localhost" in job.stderr.data
    assert b"was killed by SIGKILL" in job.stderr.data
    assert (ANEW in job.stderr.data) == (order == "lost first")


@pytest.mark.gate
def test_a_rank_that_is_lost_in_shutdown_when_another_has_come_to_its_end_ends_the_job(distrun, python, tmp_path):
    job = distrun("--max-restarts", "3", "-np", "2", "-H", "localhost:2", *python(PLAIN), "0", str(tmp_path / "left"))
    assert job.wait() == 137
    assert job.stdout.data.count(b"starts") == 2
    assert b"was killed by SIGKILL; " + ANEW in job.stderr.data


def test_ranks_that_end_themselves_with_a_status_are_started_anew_as_before(output, python, tmp_path):
    printed = output(
        "--max-restarts", "3", "-np", "2", "-H", "localhost:2", *python(PLAIN), "3", str(tmp_path / "left")
    )
    assert printed.count(b"starts 2") == 2
