"""Another user of the machine cannot stop a job: names that are taken, and descriptors that are used up."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from session.tiers import one_in_gate
from shell import wait_until

from distrun.host.endpoints import free_port
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous

DEADLINE = 120.0  # seconds; far more than anything takes, so that a busy machine fails no test
NOBODY = 65534
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can play another user")

SQUATTER = """
import os, socket, sys
uid, how, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
kept = []
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name in names:
        taken = socket.socket(socket.AF_UNIX, kind)
        taken.bind("\\0" + name)
        kept.append(taken)
        if how != "binds":
            taken.listen(0)
        while how == "is full":
            client = socket.socket(socket.AF_UNIX, kind)
            client.setblocking(False)
            kept.append(client)
            if client.connect_ex("\\0" + name):
                break
print("ready", flush=True)
sys.stdin.read()
"""
RANK = """
import numpy as np, distrun
from distrun.runtime.collectives.point_to_point import messages
distrun.init()
assert distrun.allreduce(np.ones(3), "a", op=distrun.Sum)[0] == 2
other, into = 1 - distrun.rank(), np.zeros(1)
for transfer in messages.send(np.ones(1).data, other, "", 0), messages.receive(into.data, [other], "", 0):
    transfer.wait(100)
print("done", into[0])
"""


@pytest.fixture
def squat() -> Iterator[Callable[..., None]]:
    """Lets another user take names of abstract sockets."""
    squatters: list[subprocess.Popen[str]] = []

    def take(how: str, *names: bytes) -> None:
        command = [sys.executable, "-c", SQUATTER, str(NOBODY), how, *(name[1:].decode() for name in names)]
        squatters.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert squatters[-1].stdout is not None
        assert squatters[-1].stdout.readline() == "ready\n"

    yield take
    for squatter in squatters:
        squatter.communicate()


@pytest.mark.gate
@pytest.mark.parametrize("how", one_in_gate("binds", "listens", "is full"))
def test_ranks_meet_though_another_user_has_taken_all_their_names(squat, how):
    """Without a key, as here, everybody can tell the names beforehand."""
    port = str(free_port())
    rendezvous = LocalRendezvous(f"env.127.0.0.1:{port}:1.1", None)
    squat(how, rendezvous.address(), rendezvous.address("messages to 0"), rendezvous.address("messages to 1"))
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outcomes = [rank.communicate(timeout=DEADLINE) for rank in ranks]
    assert [stdout for stdout, _ in outcomes] == ["done 1.0\n"] * 2, outcomes
    assert f"of user id {NOBODY} has taken the abstract socket @distrun-" in outcomes[0][1]


@pytest.mark.full
def test_no_name_that_a_job_has_can_be_told_beforehand(distrun, python, tmp_path):
    """Not from the name of the job, which others may know, and which the kernel's list does not show either."""
    os.mkfifo(end := tmp_path / "end")
    show = "import os, distrun; distrun.init(); print(os.environ['DISTRUN_JOB'], flush=True); open({!r}).read()"
    job = distrun("-np", "1", "--no-tag-output", *python(show.format(str(end))))
    name = job.stdout.wait_for(b"\n").strip().decode()
    wait_until(lambda: f"/{job.process.pid}\n" in (listed := Path("/proc/net/unix").read_text()) and name not in listed)
    end.write_text("")
    assert job.wait() == 0


@pytest.mark.full
def test_jobs_are_found_among_names_that_another_user_has_taken(squat, distrun, python):
    prefix = f"\0distrun/{os.getuid()}/".encode()
    squat("listens", *(prefix + b"0" * 16 + f"/{pid}".encode() for pid in range(1, 30)))
    squat("is full", *(prefix + b"1" * 16 + f"/{pid}".encode() for pid in range(1, 30)))
    job = distrun("-np", "1", "--metrics", ":0", *python("import time; time.sleep(1000)"))
    job.stderr.wait_for(b"/metrics\n")
    ps = [sys.executable, "-m", "distrun.runner", "ps"]
    while f" {job.process.pid} " not in (shown := subprocess.check_output(ps, text=True, timeout=DEADLINE)):
        assert job.process.poll() is None, shown
    job.process.terminate()
    job.wait()


@pytest.mark.full
def test_connections_with_the_metrics_take_no_descriptor_that_the_job_needs(distrun, python, tmp_path):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    os.mkfifo(end := tmp_path / "end")
    wait = f"import distrun; distrun.init(); distrun.rank() or open({str(end)!r}).read(); distrun.barrier()"
    job = distrun("-np", "2", "--metrics", ":0", *python(wait), before_exec=limit)
    said = job.stderr.wait_for(b"/metrics\n").decode()
    address = said.partition("http://")[2].split("/")[0]
    host, port = address.split(":")
    clients = [socket.create_connection((host, int(port)), timeout=DEADLINE) for _ in range(200)]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE) as answer:
        assert b"distrun_ranks 2" in answer.read()
    end.write_text("")
    assert job.wait() == 0, job.stderr.data
    for client in clients:
        client.close()
