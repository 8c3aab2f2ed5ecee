"""A launcher on each of two hosts, which reach each other by the network alone."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running_distrun import DEADLINE
from shell import Shell, are_stopped, wait_until

PROGRAM = str(Path(__file__).parents[1] / "parallel" / "programs" / "stays.py")


class Nodes:
    """Starts a launcher on each host; they meet at alpha."""

    def __init__(self, alpha, beta):
        self._started = []
        self._endpoint = f"{alpha.address}:29400"
        self._hosts = (alpha, beta)

    def start(self, *options):
        for host in self._hosts:
            distrun = [sys.executable, "-m", "distrun.runner", "--nnodes", "2", "--rdzv-endpoint", self._endpoint]
            named = ("unshare", "--uts", "sh", "-c", f'hostname {host.name} && exec "$@"', "sh")
            command = [*host.inside, *named, *distrun, *options, sys.executable, PROGRAM]
            environ = {**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            self._started.append(subprocess.Popen(command, env=environ, **pipes))
        for launcher in self._started:
            assert "sum 2 of 2" in launcher.stdout.readline(), launcher.communicate()
        return self._started

    def end(self):
        for launcher in self._started:
            launcher.kill()
            launcher.communicate()


@pytest.fixture
def nodes(alpha, beta):
    made = Nodes(alpha, beta)
    yield made
    made.end()
    for host in (alpha, beta):
        host.assert_gone()


@pytest.mark.gate
def test_launchers_meet_across_hosts_and_a_signal_to_one_ends_both(nodes):
    launchers = nodes.start("--ports", "30000-30009")
    launchers[1].send_signal(signal.SIGTERM)
    reports = [launcher.communicate(timeout=DEADLINE)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [143, 143]
    assert "distrun: the launcher on beta received SIGTERM\n" in reports[0]


@pytest.mark.gate
def test_a_host_that_is_out_of_reach_ends_the_job_on_both_sides(nodes, beta):
    launchers = nodes.start("--keepalive", "5")
    with beta.cut_off():
        reports = [launcher.communicate(timeout=DEADLINE)[1] for launcher in launchers]
    assert all(launcher.returncode for launcher in launchers), reports
    # The launchers notice it, or their ranks, and the kernel by its own clock.
    assert re.search("nothing was heard from (alpha|beta) for 5 s|nothing was heard from its host", "".join(reports))


def test_ctrl_z_on_one_node_stops_the_ranks_of_all(alpha, beta):
    code = "import itertools, time\nfor n in itertools.count(): print('step', n, flush=True); time.sleep(0.01)"
    options = ["--nnodes", "2", "--rdzv-endpoint", f"{alpha.address}:29400"]
    shells = [Shell(PATH=f"/usr/sbin:/sbin:{os.environ['PATH']}") for _ in range(2)]
    try:
        for host, shell in zip((alpha, beta), shells, strict=True):
            distrun = [sys.executable, "-m", "distrun.runner", *options, sys.executable, "-c", code]
            named = f"hostname {host.name} && exec {shlex.join(distrun)}"
            shell.type(shlex.join([*host.inside, "unshare", "--uts", "sh", "-c", named]) + "\n")
        for shell in shells:
            shell.wait_for("step 5")
        shells[1].type("\x1a")
        wait_until(lambda: all(len(shell.ranks()) == 1 and are_stopped(shell.ranks()) for shell in shells))
        assert not are_stopped(shells[0].family("distrun.runner"))
        before = shells[0].type("")
        shells[1].type("fg\n")
        shells[0].wait_for("step", before)
        shells[0].type("\x03")
        wait_until(lambda: not shells[0].ranks() and not shells[1].ranks())
    finally:
        for shell in shells:
            shell.close()
    for host in (alpha, beta):
        host.assert_gone()
