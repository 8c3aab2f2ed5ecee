"""A real agent, spoken to in frames by the test in the launcher's place."""

from __future__ import annotations

import os
import sys

import pytest
from spoken_agent import DEADLINE, SpokenAgent

from distrun import __version__
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import WINDOW, Frame, FrameKind
from distrun.runner.protocol.handshake import Greeting, HostInfo, find_first_frame

pytestmark = pytest.mark.gate


@pytest.fixture
def launcher():
    launcher = SpokenAgent()
    yield launcher
    launcher.close()


def test_the_output_of_a_rank_precedes_its_end(launcher):
    launcher.start("import sys; print('x' * 300_000); sys.exit(3)")
    exited = launcher.receive(FrameKind.EXITED)
    assert RankExit.decode(exited.payload) == RankExit(3)
    assert launcher.output() == b"x" * 300_000 + b"\n"
    assert launcher.received[0].kind is FrameKind.STARTED


def test_unacknowledged_output_is_bounded_while_commands_are_obeyed(launcher):
    launcher.start("import os\nwhile True: os.write(1, b'x' * 4096)", "input()", stdin=1)
    while len(launcher.output()) < WINDOW:
        launcher.receive(FrameKind.STDOUT)
    launcher.send(Frame(FrameKind.STDIN, 1, b"\n"))  # rank 1 ends, though rank 0 has filled the window
    assert launcher.receive(FrameKind.EXITED).process == 1
    before = len(launcher.output())
    assert before <= WINDOW + (1 << 17)
    launcher.send(Frame.number(FrameKind.ACK, before))
    while len(launcher.output()) < before + WINDOW // 2:
        launcher.receive(FrameKind.STDOUT)


def test_its_last_frame_counts_what_it_had_to_end(launcher):
    launcher.start("import os, time\nif os.fork() == 0:\n os.setsid(); time.sleep(1000)")
    launcher.receive(FrameKind.EXITED)
    launcher.send(Frame.number(FrameKind.FINISH, 5.0))
    assert launcher.receive(FrameKind.GONE).payload == b"1 0"
    assert launcher.process.wait(DEADLINE) == 0


def test_a_launcher_that_is_gone_before_the_plan_leaves_nothing_to_do(launcher):
    launcher.process.stdin.close()
    assert launcher.process.wait(DEADLINE) == 0


def test_sigterm_ends_it_and_its_ranks(launcher):
    launcher.start("import time; time.sleep(1000)")
    rank = launcher.receive(FrameKind.STARTED).as_int()
    launcher.process.terminate()
    assert launcher.process.wait(DEADLINE) == 0
    assert not os.path.exists(f"/proc/{rank}")


def test_what_it_cannot_start_it_reports_with_a_shells_status(launcher, tmp_path):
    plan = AgentPlan("here", [str(tmp_path)], os.getcwd(), 5.0, {}, [RankPlan(0, 0, 1, 0, 1, {})])
    launcher.send(Frame(FrameKind.PLAN, payload=plan.to_json()))
    assert launcher.receive(FrameKind.NOT_STARTED).payload.startswith(b"126 ")


def test_between_hosts_it_introduces_itself_and_shows_that_it_lives(launcher, tmp_path):
    launcher.send(Frame(FrameKind.HELLO, payload=Greeting(3.0, str(tmp_path)).to_json()))
    stream = b""
    while (found := find_first_frame(stream)) is None:
        stream += os.read(launcher.process.stdout.fileno(), 1 << 16)
    answer = HostInfo.from_json(found[0])
    assert (answer.distrun, answer.pid, answer.problem) == (__version__, launcher.process.pid, "")
    assert launcher.receive(FrameKind.KEEPALIVE)
    assert launcher.process.wait(DEADLINE) == 0  # we said nothing for too long


def test_on_another_host_it_completes_the_environment_with_its_own(launcher):
    rank = RankPlan(0, 0, 1, 0, 1, {})
    command = [sys.executable, "-c", "import os; print(os.environ['HOME'], os.environ['OMP_NUM_THREADS'])"]
    plan = AgentPlan("there", command, os.getcwd(), 5.0, {"HOME": "/plan", "OMP_NUM_THREADS": "auto"}, [rank], True)
    launcher.send(Frame(FrameKind.PLAN, payload=plan.to_json()))
    launcher.receive(FrameKind.EXITED)
    home, threads = launcher.output().split()
    assert home == b"/plan"
    assert threads.isdigit()
