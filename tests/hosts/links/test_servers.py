"""Parameter servers on two hosts: workers reach them, and with a host that is lost they move, or the job ends."""

from __future__ import annotations

import signal

import pytest

DEADLINE = 120.0  # seconds; far more than anything takes
BEGINNING = """
import numpy as np
import distrun
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import Session

distrun.init()
rule = Rule("torch.SGD", dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, delay=0))
session = Session(Layout((Parameter("a", (300000,), 0),), (rule,), distrun.size(), {staleness} == 0))
if distrun.rank() == 0:
    session.start({{0: np.zeros(300000, np.float32)}})
session.pull(0)

def push():
    session.await_values()
    session.gradient_of(0)[:] = distrun.rank() + 1
    session.push([1.0], [True], {{}}, {staleness}, 0)
"""
TRAINING = """
for number in range({steps}):
    push()
    if number == 3:
        print("training", flush=True)
session.await_values()
assert (session.values == -1.5 * {steps}).all(), session.values
"""


def training(steps=10**6, staleness=4):
    """Return the program of a worker that trains for so many steps."""
    return BEGINNING.format(staleness=staleness) + TRAINING.format(steps=steps)


@pytest.fixture
def train(distrun, python):
    """Return a function that starts a job of a worker and a server on each host."""
    return lambda *options, **settings: distrun(
        "-H", "alpha:1,beta:1", "--servers", "2", *options, *python(training(**settings))
    )


@pytest.mark.gate
def test_workers_of_two_hosts_train_on_servers_of_both_with_encryption(train):
    train("--encrypt", steps=5, staleness=0).ended(0, DEADLINE)


def test_a_server_of_the_other_host_is_named_with_it(train, beta):
    job = train()
    job.stdout.wait_for(b"training", 2)
    (server,) = (process for process in beta.processes() if process.cmdline()[-1].endswith("process.py"))
    server.send_signal(signal.SIGKILL)
    assert job.wait(DEADLINE) == 137
    assert b"distrun: server 1 on beta (pid " in job.stderr.data
    assert b"was killed by SIGKILL" in job.stderr.data


def test_a_host_that_is_cut_off_ends_the_job_with_its_servers(train, alpha, beta):
    """Restarts are for servers whose host is there."""
    job = train("--server-restarts", "3", "--keepalive", "2")
    job.stdout.wait_for(b"training", 2)
    with beta.cut_off():
        assert job.wait(DEADLINE) == 1
        assert b"nothing was heard from beta for 2 s" in job.stderr.data
        assert b"restarted" not in job.stderr.data
        alpha.assert_gone()
        beta.assert_gone()


def test_a_worker_that_is_killed_ends_the_servers_of_both_hosts(train, alpha):
    job = train(staleness=0)
    job.stdout.wait_for(b"training", 2)
    (worker,) = (process for process in alpha.processes() if process.environ().get("RANK") == "0")
    worker.kill()
    assert job.wait(DEADLINE) == 137
    assert f"distrun: rank 0 on alpha (pid {worker.pid}) was killed by SIGKILL".encode() in job.stderr.data


# The only copy was made at the beginning, so that what was pushed until the host is lost is lost with it.
MOVED = """
import os, time
for _ in range(20):
    push()
session.await_values()
distrun.barrier()
print("training", flush=True)
while not os.path.exists({file!r}):
    time.sleep(0.05)
for _ in range({more}[distrun.rank()]):
    push()
session.await_values()
distrun.barrier()
session.pull(float("inf"))
assert (session.values == {expected}).all(), session.values
"""


@pytest.mark.parametrize(
    ("staleness", "more", "expected", "is_cut"),
    [
        (0, (2, 2), -3.0, False),
        pytest.param(2, (2, 0), -2.0, False, marks=pytest.mark.gate),
        (2, (2, 2), -6.0, True),
    ],
    ids=["synchronous", "one worker is idle", "the network is cut"],
)
def test_servers_of_a_host_that_is_lost_move_to_another(
    distrun, python, beta, tmp_path, staleness, more, expected, is_cut
):
    file = tmp_path / "moved"
    code = BEGINNING.format(staleness=staleness) + MOVED.format(file=str(file), more=more, expected=expected)
    copies = tmp_path / "copies"
    options = ["--servers", "1", "--server-hosts", "beta", "--server-restarts", "1"]
    options += ["--server-checkpoint", f"{copies}:1000", "--keepalive", "2"]
    job = distrun("-H", "alpha:2", *options, *python(code))
    job.stdout.wait_for(b"training", 2)
    assert "process.py" in [process.cmdline()[-1].rpartition("/")[2] for process in beta.agent().children()]
    if is_cut:
        beta.cut()
    else:
        beta.agent().kill()
    try:
        job.stderr.wait_for(b"goes on with its copy of ")
        beta.assert_gone()
    finally:
        beta.mend()
    file.touch()
    assert job.wait(DEADLINE) == 0, job.stderr.data
    assert b"; server 0 is started on alpha with its last copy (restart 1 of 1)\n" in job.stderr.data
    assert list(copies.iterdir()) == []


def test_a_host_that_is_lost_more_often_than_servers_may_move_ends_the_job(distrun, python, beta, tmp_path):
    options = ["--servers", "2", "--server-hosts", "beta", "--server-restarts", "1"]
    copies = tmp_path / "copies"
    job = distrun("-np", "2", *options, "--server-checkpoint", str(copies), *python(training()))
    job.stdout.wait_for(b"training", 2)
    beta.agent().kill()
    assert job.wait(DEADLINE) == 137
    assert b"the agent on beta (pid " in job.stderr.data
    assert b"is started on" not in job.stderr.data
    assert list(copies.iterdir()) == []
