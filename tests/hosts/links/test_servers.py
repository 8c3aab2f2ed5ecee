"""Parameter servers on two hosts: workers reach them, and with a host that is lost they move, or the job ends."""

from __future__ import annotations

import signal

import pytest
from machines.rank_programs import SERVED, SERVED_UNTIL

DEADLINE = 120.0  # seconds; far more than anything takes
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
    return SERVED.format(staleness=staleness) + TRAINING.format(steps=steps)


@pytest.fixture
def train(distrun, python):
    """Return a function that starts a job of a worker and a server on each host."""
    usual = ("-H", "alpha:1,beta:1", "--servers", "2")
    return lambda *options, **settings: distrun(*usual, *options, *python(training(**settings)))


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
    assert f"distrun: rank 0 on alpha (pid {worker.pid}) was killed by SIGKILL".encode() in job.ended(137, DEADLINE)


@pytest.mark.parametrize(
    ("staleness", "more", "expected", "is_cut"),
    [(0, (2, 2), -3.0, False), pytest.param(2, (2, 0), -2.0, False, marks=pytest.mark.gate), (2, (2, 2), -6.0, True)],
    ids=["synchronous", "one worker is idle", "the network is cut"],
)
def test_servers_of_a_host_that_is_lost_move_to_another(ready, beta, tmp_path, staleness, more, expected, is_cut):
    file = tmp_path / "moved"
    code = SERVED_UNTIL.format(staleness=staleness, file=str(file), more=more, expected=expected)
    copies = tmp_path / "copies"
    options = ["--servers", "1", "--server-hosts", "beta", "--server-restarts", "1"]
    options += ["--server-checkpoint", f"{copies}:1000", "--keepalive", "2"]
    job = ready(2, "-H", "alpha:2", *options, code=code, sign=b"training")
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
    assert b"; server 0 is started on alpha with its last copy (restart 1 of 1)\n" in job.ended(0, DEADLINE)
    assert list(copies.iterdir()) == []


def test_a_host_that_is_lost_more_often_than_servers_may_move_ends_the_job(ready, beta, tmp_path):
    options = ["--servers", "2", "--server-hosts", "beta", "--server-restarts", "1"]
    copies = tmp_path / "copies"
    job = ready(2, "-np", "2", *options, "--server-checkpoint", str(copies), code=training(), sign=b"training")
    beta.agent().kill()
    assert job.wait(DEADLINE) == 137
    assert b"the agent on beta (pid " in job.stderr.data
    assert b"is started on" not in job.stderr.data
    assert list(copies.iterdir()) == []
