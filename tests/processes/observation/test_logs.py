"""`distrun logs`, beside a running job whose ranks write when the test says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from running_distrun import Stream

pytestmark = pytest.mark.gate

# Each writes a line for every line in the pipe.
ECHO = """
import os, sys
rank = os.environ["RANK"]
print("begun", rank, flush=True)
for line in open(sys.argv[1] + rank):
    print(line, end="", flush=True)
    print("error", line, end="", file=sys.stderr, flush=True)
"""


def logs(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "distrun.runner", "logs", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


@pytest.fixture
def job(distrun, python, tmp_path):
    """Return a job of two ranks, and a function that has one of them write a line."""
    pipes = []
    for rank in range(2):
        os.mkfifo(tmp_path / f"pipe{rank}")
    started = distrun("-np", "2", "--oversubscribe", "--rank-filter", "0", *python(ECHO), str(tmp_path / "pipe"))
    started.stdout.wait_for(b"[0] begun 0")
    pipes += [(tmp_path / f"pipe{rank}").open("w", buffering=1) for rank in range(2)]
    while logs(str(started.process.pid)).wait(60):
        assert started.process.poll() is None  # the launcher serves from half a second after its start

    def write(rank, line):
        print(line, file=pipes[rank])

    write.close = lambda: [pipe.close() for pipe in pipes]
    return started, write


def test_output_is_printed_by_rank_followed_and_ended_with_the_job(job):
    started, write = job
    pid = str(started.process.pid)
    followed, one = logs(pid, "--follow"), logs(pid, "--follow", "--rank", "1")
    streams = {
        (reader, name): Stream(getattr(reader, name)) for reader in (followed, one) for name in ("stdout", "stderr")
    }
    streams[followed, "stdout"].wait_for(b"[0] begun 0\n")
    streams[one, "stdout"].wait_for(b"begun 1\n")
    write(1, "hello")  # --rank-filter hides it in the job's own output
    streams[followed, "stdout"].wait_for(b"[1] hello\n")
    streams[one, "stderr"].wait_for(b"error hello\n")
    once = logs(pid, "--rank", "1").communicate(timeout=60)
    assert once == (b"begun 1\nhello\n", b"error hello\n")
    write.close()
    assert started.wait() == 0
    assert (followed.wait(60), one.wait(60)) == (0, 0)
    assert streams[one, "stdout"].close() == "begun 1\nhello\n"
    assert streams[one, "stderr"].close() == "error hello\ndistrun: the job is over, with exit status 0\n"
    assert "[1] error hello\n" in streams[followed, "stderr"].close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rank", "2"), "has no output of rank 2: it has ranks 0-1"),
        (("--rank", "-1"), "-1 is not in the range x>=0"),
    ],
)
def test_a_rank_that_there_is_not_costs_one_sentence(job, words, sentence):
    started, _ = job
    refused = logs(str(started.process.pid), *words)
    said = refused.communicate(timeout=60)[1].decode()
    assert (refused.returncode, said.count("\n")) == (2, 1)
    assert sentence in said


def test_a_job_that_is_over_costs_one_sentence():
    refused = logs("0123456789abcdef")
    said = refused.communicate(timeout=60)[1].decode()
    assert (refused.returncode, said.count("\n")) == (2, 1)
    assert "no job" in said


def test_the_end_of_the_job_does_not_wait_for_one_who_does_not_read(job):
    started, write = job
    reader = logs(str(started.process.pid), "--follow")
    assert b"begun" in reader.stdout.readline()
    reader.send_signal(signal.SIGSTOP)
    for _ in range(10000):
        write(0, "x" * 200)  # more than the socket holds
    write.close()
    assert started.wait() == 0
    reader.kill()
    reader.communicate()


def test_a_killed_launcher_costs_one_sentence(job):
    started, _ = job
    reader = logs(str(started.process.pid), "--follow", "--rank", "0")
    assert reader.stdout.readline() == b"begun 0\n"
    started.process.kill()
    said = reader.communicate(timeout=60)[1].decode()
    assert (reader.returncode, said.count("\n")) == (2, 1)
    assert "has ended without a word, or its launcher was killed" in said
