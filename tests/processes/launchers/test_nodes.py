"""A launcher per node, as torchrun has it: two on this machine, which meet on its loopback interface."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from session.tiers import one_in_gate
from shell import wait_until

WAITS = "import time; print('up', flush=True); time.sleep(1000)"


class Nodes:
    """Starts launchers that meet."""

    def __init__(self, distrun: Callable[..., Any], port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self._distrun = distrun

    def start(self, code: str, *options: str, ranks: int = 1, nnodes: str = "2", **environ: str) -> Any:
        place = ("--nnodes", nnodes, "--nproc-per-node", str(ranks), "--rdzv-endpoint", self.endpoint)
        return self._distrun(*place, *options, sys.executable, "-c", code, **environ)

    def start_two(self) -> list[Any]:
        """Start two launchers whose ranks wait, and return them when both ranks run."""
        launches = [self.start(WAITS), self.start(WAITS)]
        for launch in launches:
            launch.stdout.wait_for(b"up")
        return launches


@pytest.fixture
def nodes(distrun, rendezvous_port):
    return Nodes(distrun, rendezvous_port)


def listens(launch: Any) -> bool:
    """Whether other launchers can call this one."""
    sockets = psutil.Process(launch.process.pid).net_connections("tcp")
    return any(each.status == psutil.CONN_LISTEN for each in sockets)


def failed_alike(*launches: Any) -> list[bytes]:
    """Wait for all launchers and return what each reports."""
    statuses = [launch.wait() for launch in launches]
    assert len(set(statuses)) == 1, (statuses, *(launch.stderr.data.decode() for launch in launches))
    assert statuses[0] != 0
    return [launch.stderr.data for launch in launches]


@pytest.mark.gate
def test_each_launcher_starts_and_shows_its_own_ranks(nodes, tmp_path):
    code = "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'GROUP_RANK', 'CALLED')))"
    options = ("--torchrun-env", "--output-dir", str(tmp_path / "out"))
    first = nodes.start(code, "--node-rank", "0", "--torchrun-env", CALLED="first")
    second = nodes.start(code, "--node-rank", "1", *options, ranks=2, CALLED="second")
    assert (first.wait(), second.wait()) == (0, 0)
    assert first.stdout.data == b"[0] 0 3 0 0 first\n"
    assert sorted(second.stdout.data.splitlines()) == [b"[1] 1 3 0 1 second", b"[2] 2 3 1 1 second"]
    assert sorted(item.name for item in (tmp_path / "out").iterdir()) == ["rank.1", "rank.2"]


@pytest.mark.gate
def test_a_rank_that_fails_ends_the_job_on_all_nodes_with_its_status_and_last_words(nodes):
    fails = "import os, time; assert os.environ['RANK'] == '0', 'no such luck'; time.sleep(1000)"
    reports = failed_alike(nodes.start(fails), nodes.start(fails))
    for report in reports:
        assert b"rank 1 on " in report
        assert b"exited with code 1\n" in report
        assert b"    AssertionError: no such luck\n" in report


@pytest.mark.gate
def test_a_launcher_that_is_killed_ends_the_job_everywhere(nodes):
    launches = nodes.start_two()
    left = psutil.Process(launches[0].process.pid).children(recursive=True)
    launches[0].process.kill()
    assert launches[1].wait() == 1
    assert b"distrun: the launcher on " in launches[1].stderr.data
    assert b" is gone\n" in launches[1].stderr.data
    launches[0].wait()
    assert psutil.wait_procs(left, 60.0)[1] == []


@pytest.mark.gate
@pytest.mark.parametrize("signum", one_in_gate(signal.SIGTERM, signal.SIGINT))
def test_a_signal_to_one_launcher_ends_all(nodes, signum):
    launches = nodes.start_two()
    launches[1].process.send_signal(signum)
    reports = failed_alike(*launches)
    assert launches[0].process.returncode == 128 + signum
    assert f" received {signum.name}\n".encode() in reports[0]


@pytest.mark.gate
def test_a_node_that_comes_late_is_waited_for_and_one_too_many_is_not(nodes):
    first = nodes.start(WAITS)
    wait_until(lambda: listens(first))
    late = nodes.start(WAITS)
    late.stdout.wait_for(b"up")
    surplus = nodes.start(WAITS)
    assert b"the job has begun without" in surplus.ended(1)
    late.process.send_signal(signal.SIGINT)
    failed_alike(first, late)


@pytest.mark.gate
def test_ctrl_c_while_others_are_waited_for_ends_the_wait(nodes):
    alone = nodes.start(WAITS)
    wait_until(lambda: listens(alone))
    alone.process.send_signal(signal.SIGINT)
    assert alone.wait() == 130


def test_fewer_nodes_than_the_most_begin_after_the_last_call(nodes):
    code = "print('up')"
    launches = [nodes.start(code, "--rdzv-conf", "last_call_timeout=0.5", nnodes="2:3") for _ in range(2)]
    assert [launch.wait() for launch in launches] == [0, 0]
