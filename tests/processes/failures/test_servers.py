"""Parameter servers of real jobs: they serve, they are killed, and nothing of them is left."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest
from session.tiers import one_in_gate
from shell import wait_until

DEADLINE = 120.0  # seconds; far more than anything takes
COPIES = {"server-0.optimizer-0.0", "server-1.optimizer-0.0"}

# Each worker pushes its rank + 1 for every element, or what the test adds; the parameters begin with 0.
WORKER = """
import os, signal, sys
import numpy as np
import distrun
import psutil
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import Session

distrun.init()
rule = Rule("torch.SGD", dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, delay=0))
rank, size = distrun.rank(), distrun.size()
parameters = (Parameter("a", (3, 5), 0), Parameter("b", (100000,), 0), Parameter("rows", (10, 4), 0, True))

def begin(staleness):
    session = Session(Layout(parameters, (rule,), size, staleness == 0))
    if rank == 0:
        session.start({index: np.zeros(item.shape, np.float32) for index, item in enumerate(parameters)})
    session.pull(staleness)
    return session

def step(session, staleness, ahead=0):
    session.await_values()
    for index in (0, 1):
        session.gradient_of(index)[:] = rank + 1
    rows = np.array([rank, 7])
    session.push([1.0], [True] * 3, {2: (rows, np.full((2, 4), rank + 1, np.float32))}, staleness, ahead)

def kill(variable, value, signum=signal.SIGKILL):
    for process in psutil.Process().parent().children():
        if process.environ().get(variable) == value:
            process.send_signal(signum)
"""


@pytest.fixture
def workers(distrun, python):
    """Starts a job of two workers and two servers."""

    def start(code, *options):
        return distrun("-np", "2", "--servers", "2", *options, *python(WORKER + code))

    return start


@pytest.mark.gate
def test_synchronous_workers_get_the_average_and_the_servers_are_no_ranks(workers, tmp_path):
    job = workers(
        "session = begin(0)\n"
        "for _ in range(3): step(session, 0)\n"
        "session.await_values()\n"
        "assert (session.values == -4.5).all(), session.values\n"
        "rows = session.rows(2, np.array([0, 1, 2, 7]), 0)\n"
        "assert (rows == [[-1.5], [-3], [0], [-4.5]]).all(), rows\n"
        "print(size, os.environ.get('DISTRUN_SERVER'), flush=True)",
        "--output-dir",
        str(tmp_path / "logs"),
    )
    assert job.wait(DEADLINE) == 0
    assert sorted(job.stdout.data.splitlines()) == [b"[0] 2 None", b"[1] 2 None"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["rank.0", "rank.1", "server.0", "server.1"]


@pytest.mark.gate
def test_every_gradient_counts_once_without_waiting(workers):
    workers(
        "session = begin(float('inf'))\n"
        "for _ in range(3 + 4 * rank): step(session, float('inf'), ahead=1)\n"
        "session.await_values()\n"
        "distrun.barrier()\n"
        "session.pull(float('inf'))\n"
        "assert (session.values == -(3 * 1 + 7 * 2)).all(), session.values",
        "--encrypt",
    ).ended(0, DEADLINE)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_worker_that_has_left_is_waited_for_by_nobody(workers, staleness):
    workers(
        f"session = begin({staleness})\n"
        f"for _ in range(2 + 5 * rank): step(session, {staleness})\n"
        "session.await_values()\n"
    ).ended(0, DEADLINE)


@pytest.mark.gate
def test_a_server_that_is_killed_ends_the_job_with_its_failure_report(workers):
    said = workers(
        "session = begin(float('inf'))\n"
        "print('training', flush=True)\n"
        "for number in range(10 ** 6):\n"
        "    step(session, float('inf'))\n"
        "    if number == 5 and rank == 1: kill('DISTRUN_SERVER', '1')\n"
    ).ended(137, DEADLINE)
    report = said.rpartition(b"distrun: server 1")[2].decode()
    assert re.match(r" on localhost \(pid \d+\) was killed by SIGKILL\n", report), said


@pytest.mark.gate
@pytest.mark.parametrize("staleness", one_in_gate(0, 2))
def test_servers_that_are_started_anew_go_on_where_they_were(workers, staleness):
    said = workers(
        f"session = begin({staleness})\n"
        "for number in range(40):\n"
        f"    step(session, {staleness})\n"
        "    if number % 13 == 5 and rank == 0: kill('DISTRUN_SERVER', str(number % 2))\n"
        "session.await_values()\n"
        "distrun.barrier()\n"
        "session.pull(0)\n"
        f"assert (session.values == -40 * {1.5 if staleness == 0 else 3}).all(), session.values[[0, -1]]\n"
        f"assert (session.rows(2, np.array([7]), 0) == -40 * {1.5 if staleness == 0 else 3}).all()\n",
        "--server-restarts",
        "3",
    ).ended(0, DEADLINE)
    told = re.findall(r"server (\d) on localhost \(pid \d+\) was killed by SIGKILL; (.*)\n", said.decode())
    assert [number for number, _ in told] == ["1", "0", "1"]
    assert told[2][1] == "it is restarted with its parameters (restart 3 of 3)"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("rank", "staleness", "options"),
    one_in_gate(pytest.param(1, 0, ["--server-restarts", "3"]), pytest.param(0, "float('inf')", [])),
)
def test_a_worker_that_is_killed_ends_the_job_and_the_servers(workers, rank, staleness, options):
    said = workers(
        f"session = begin({staleness})\n"
        "for number in range(10 ** 6):\n"
        f"    step(session, {staleness})\n"
        f"    if number == 5 and rank == {rank}: os.kill(os.getpid(), signal.SIGKILL)\n",
        *options,
    ).ended(137, DEADLINE)
    report = said.decode().partition(f"distrun: rank {rank} on localhost")[2]
    assert re.match(r" \(pid \d+\) was killed by SIGKILL\n", report), said
    assert b"distrun: server" not in said  # they end because the job does, and that is no failure


def test_a_coordinator_that_is_killed_ends_the_job_and_the_servers(distrun, python):
    code = COORDINATED + (
        "if rank == 0:\n"
        "    coordinator.schedule('train', 1).fetch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "coordinator.work()\n"
        "signal.pause()\n"
    )
    said = distrun("-np", "3", "--servers", "1", *python(WORKER + code)).ended(137, DEADLINE)
    assert b"distrun: rank 0 on localhost" in said


@pytest.mark.gate
def test_servers_do_not_wait_for_a_worker_on_behalf_of_one_that_is_gone(workers):
    """Otherwise they would be there until the grace is over, which the test does not wait for."""
    job = workers(
        "session = begin(0)\n"
        "if rank == 0: step(session, 0), print('pushed', flush=True), session.await_values()\n"
        "signal.pause()\n",
        "--grace",
        str(10 * DEADLINE),
    )
    job.stdout.wait_for(b"pushed")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait(DEADLINE) == 143


@pytest.mark.gate
@pytest.mark.parametrize("signum", one_in_gate(signal.SIGTERM, signal.SIGINT))
def test_workers_that_are_told_to_end_still_reach_the_servers(workers, signum):
    job = workers(
        "session = begin(float('inf'))\n"
        "def save(*_):\n"
        "    values, _, _ = session.gather()\n"
        "    print('saved', values[0].shape, flush=True)\n"
        "    sys.exit(3)\n"
        f"signal.signal({int(signum)}, save)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    job.stdout.wait_for(b"ready", 2)
    job.process.send_signal(signum)
    assert job.wait(DEADLINE) == 128 + signum
    assert job.stdout.data.count(b"saved (3, 5)\n") == 2
    assert b"Traceback" not in job.stderr.data


def test_workers_that_describe_other_parameters_are_told_so(workers):
    said = workers("parameters = parameters[:2 + rank]\nbegin(0)\n").ended(1, DEADLINE)
    assert b"distrun.errors.MismatchError: one rank has " in said


COORDINATED = """
from distrun.errors import RemoteError
from distrun.methods.servers.coordinator import Coordinator

session = begin(float("inf"))

def train(amount):
    step(session, float("inf"))
    session.await_values()
    if amount == 13:
        raise ValueError("no thirteen")
    return rank, 2 * amount

coordinator = Coordinator({"train": train})
"""


@pytest.mark.gate
def test_a_coordinator_schedules_functions_on_the_workers(distrun, python):
    code = COORDINATED + (
        "if rank == 0:\n"
        "    results = [coordinator.schedule('train', amount) for amount in range(10)]\n"
        "    coordinator.join()\n"
        "    fetched = [result.fetch() for result in results]\n"
        "    assert [value for _, value in fetched] == list(range(0, 20, 2)), fetched\n"
        "    session.pull(float('inf'))\n"
        "    assert (session.values == -sum(1 + worker for worker, _ in fetched)).all()\n"
        "    coordinator.schedule('train', 13)\n"
        "    try: coordinator.join()\n"
        "    except RemoteError as error: print(str(error).splitlines()[-1], flush=True)\n"
        "    coordinator.end()\n"
        "else: coordinator.work()\n"
    )
    job = distrun("-np", "3", "--servers", "1", *python(WORKER + code))
    assert job.wait(DEADLINE) == 0, job.stderr.data
    assert job.stdout.data == b"[0] ValueError: no thirteen\n"


def test_workers_return_though_the_coordinator_ends_without_a_word(distrun, python):
    code = COORDINATED + (
        "if rank == 0: coordinator.schedule('train', 1)\n"
        "else:\n"
        "    coordinator.work()\n"
        "    print('returned', flush=True)\n"
    )
    job = distrun("-np", "3", "--servers", "1", *python(WORKER + code))
    assert job.wait(DEADLINE) == 0, job.stderr.data
    assert sorted(job.stdout.data.splitlines()) == [b"[1] returned", b"[2] returned"]


def test_a_worker_that_dies_in_a_scheduled_function_ends_the_job_with_its_failure_report(workers):
    said = workers(
        "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "from distrun.methods.servers.coordinator import Coordinator\n"
        "coordinator = Coordinator({'die': die})\n"
        "if rank == 0:\n"
        "    coordinator.schedule('die')\n"
        "    coordinator.join()\n"
        "else: coordinator.work()\n"
    ).ended(137, DEADLINE)
    assert b"distrun: rank 1 on localhost" in said


@pytest.mark.gate
@pytest.mark.parametrize("victim", one_in_gate("worker", "launcher", chosen=1))
def test_no_copies_are_left_whoever_is_killed(workers, tmp_path, victim):
    copies = tmp_path / "copies"
    job = workers(
        "session = begin(2)\n"
        "for number in range(10 ** 6):\n"
        "    step(session, 2)\n"
        "    if number == 20: print('training', os.getpid(), flush=True)\n",
        *("--server-restarts", "1", "--server-checkpoint", f"{copies}:0.05"),
    )
    job.stdout.wait_for(b"training", 2)
    wait_until(lambda: {path.name for path in copies.glob("*/*")} >= COPIES)
    if victim == "worker":
        os.kill(int(re.search(rb"training (\d+)", job.stdout.data)[1]), signal.SIGKILL)
        assert job.wait(DEADLINE) == 137
    else:
        family = job.family()
        job.process.kill()
        assert job.wait(DEADLINE) == -signal.SIGKILL
        assert psutil.wait_procs(family, timeout=DEADLINE)[1] == []
    assert list(copies.iterdir()) == []
