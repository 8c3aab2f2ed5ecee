"""Stall warnings say what TCP says of the connections between the hosts, in every direction."""

from __future__ import annotations

import signal

import pytest
from machines.rank_programs import WAITING

SMALL = """
import numpy as np, distrun
distrun.init()
while True:
    distrun.allreduce(np.ones(700), "small")  # 5600 bytes, which travel with the messages
    print("going", flush=True)
"""
LARGE = """
import numpy as np, distrun
distrun.init()
while True:
    distrun.allreduce(np.ones(1_000_000), "large")
    print("going", flush=True)
"""
BLACK_HOLE = ("-m", "length", "--length", "1400:")
EVERY_THIRD = ("-m", "statistic", "--mode", "nth", "--every", "3", "--packet", "0")
LOST = (
    r"the connection to rank %d \(process \d+ on host %s\) has \d[\d.]* [kM]B unacknowledged, sent again \d+ times, "
    r".*packets are lost on the way.*; run 'distrun doctor -H %s,%s'"
)
BOTH_WAYS = pytest.mark.parametrize(
    ("code", "hosts"),
    [(SMALL, "alpha:1,beta:1"), (LARGE, "beta:1,alpha:1")],
    ids=["messages from rank 0", "arrays to rank 0"],
)


@pytest.fixture
def job(distrun, python):
    """Starts ranks 0 and 1 on hosts of the given names."""
    started = []

    def start(code, hosts, *options):
        started.append(distrun("-H", hosts, *options, *python(code)))
        started[0].stdout.wait_for(b"going", 2)
        return started[0]

    yield start
    for one in started:
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 143


@BOTH_WAYS
def test_a_path_that_drops_large_packets_is_told_by_the_rank_that_sends_there(job, drop, alpha, beta, code, hosts):
    one = job(code, hosts, "--stall-warning", "4", "--keepalive", "0")
    drop(alpha, beta, *BLACK_HOLE)
    other = 1 if hosts.startswith("alpha") else 0
    one.stderr.wait_for_match(LOST % (other, "beta", "alpha", "beta"))


def test_a_second_warning_tells_large_packets_from_all(job, drop, alpha, beta):
    one = job(LARGE, "alpha:1,beta:1", "--stall-warning", "2.5", "--keepalive", "0")
    drop(alpha, beta, *BLACK_HOLE)
    one.stderr.wait_for_match("while small packets are answered: large packets are lost on the way")


@BOTH_WAYS
def test_a_job_that_such_a_path_ends_says_so(ready, drop, alpha, beta, hosts, code):
    one = ready(3, "-H", hosts, "--keepalive", "4", code=code, sign=b"going")
    drop(alpha, beta, *BLACK_HOLE)
    assert one.wait() == 1
    one.stderr.wait_for_match(
        "cannot be reached any more: its host answers small packets, and large ones are lost on the way .*; "
        "run 'distrun doctor -H"
    )


def test_the_coordinator_is_told_that_what_a_rank_sends_to_it_is_lost(job, drop, alpha, beta):
    one = job(SMALL, "beta:1,alpha:1", "--stall-warning", "4", "--keepalive", "0")
    drop(alpha, beta, *BLACK_HOLE)
    one.stderr.wait_for_match(
        r"what rank 1 \(process \d+ on host alpha\) sends to rank 0 is not acknowledged, while single bytes arrive: .*"
        r"run 'distrun doctor -H beta,alpha'"
    )


def test_a_network_that_loses_packets_is_told_with_their_share(job, drop, alpha, beta):
    one = job(LARGE, "alpha:1,beta:1", "--stall-warning", "1")
    for here, there in ((alpha, beta), (beta, alpha)):
        drop(here, there, *EVERY_THIRD)
    one.stderr.wait_for_match(
        r"has sent \d[\d.]* % of its packets again \(\d+ of \d+\): packets are lost on the way; run 'distrun doctor -H "
    )


def test_a_rank_that_sleeps_behind_a_sound_network_is_not_blamed_on_it(job):
    one = job(WAITING, "alpha:1,beta:1", "--stall-warning", "1")
    one.stderr.wait_for_match(r"the connections with rank 1 are sound: the network between is not the cause")
    assert b"doctor" not in one.stderr.data


def test_a_rank_that_is_stopped_is_told_from_a_host_that_does_not_answer(job, beta):
    one = job(SMALL, "alpha:1,beta:1", "--stall-warning", "1")
    (rank,) = (item for item in beta.processes() if item.environ().get("RANK") == "1")
    rank.suspend()
    try:
        one.stderr.wait_for_match(
            r"the host of rank 1 \(process \d+ on host beta\) answers, so the network is hardly the cause"
        )
    finally:
        rank.resume()
    assert b"doctor" not in one.stderr.data
