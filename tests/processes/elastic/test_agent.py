"""An agent of an elastic job: its processes come and go one by one, and each has a control channel."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest
from spoken_agent import DEADLINE, SpokenAgent

from distrun.contract.elastic.messages import Activate, encode_pieces
from distrun.runner.planning.plan import RankPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system import cpus

pytestmark = pytest.mark.gate

COMMAND = [sys.executable, "-c", "import os; exec(os.environ['CODE'])"]
CHANNEL = "import os, socket; channel = socket.socket(fileno=int(os.environ['DISTRUN_CONTROL_FD']))\n"

# Prints which of these processes are alive; a zombie, which may go at any moment, has no environment.
ALIVE = """
left = []
for pid in PIDS:
    try:
        left += [pid] if open(f"/proc/{pid}/environ").read() else []
    except OSError:
        continue
print(left)
"""


@pytest.fixture
def launcher():
    launcher = SpokenAgent()
    launcher.job = secrets.token_hex(16)
    launcher.start_elastic(launcher.job, COMMAND)
    yield launcher
    launcher.close()


def start(launcher: SpokenAgent, number: int, code: str, **more: object) -> None:
    plan = RankPlan(number, 0, 2, 0, 1, {"CODE": code}, **more)
    launcher.send(Frame(FrameKind.START, number, plan.to_json()))


def of(launcher: SpokenAgent, number: int, kind: FrameKind) -> list[Frame]:
    return [frame for frame in launcher.received if frame.process == number and frame.kind is kind]


def family(job: str) -> list[int]:
    """All processes of the job but its agent and the guard of that."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                is_guard = b"distrun-guard" in (entry / "cmdline").read_bytes().split(b"\0")
                if f"DISTRUN_JOB={job}".encode() in (entry / "environ").read_bytes().split(b"\0") and not is_guard:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_processes_are_started_when_the_launcher_says_so(launcher):
    start(launcher, 0, "print('a')")
    launcher.receive(FrameKind.EXITED)
    start(launcher, 7, "import os; print(os.environ['DISTRUN_PROCESS'], os.environ['GIVEN'])", defaults={"GIVEN": "x"})
    assert launcher.receive(FrameKind.EXITED).process == 7
    assert launcher.output() == b"a\n7 x\n"


def test_messages_pass_whole_and_in_order_in_both_directions(launcher):
    start(launcher, 3, CHANNEL + "for _ in range(200): channel.send(channel.recv(1 << 20)[::-1])")
    sent = [b"%d " % number * 2000 for number in range(200)]  # far more than the sockets hold
    for message in sent:
        launcher.send(Frame(FrameKind.CONTROL, 3, message))
    launcher.receive(FrameKind.EXITED)
    assert [frame.payload for frame in of(launcher, 3, FrameKind.CONTROL)] == [message[::-1] for message in sent]


def test_the_last_message_precedes_the_end(launcher):
    start(launcher, 0, CHANNEL + "channel.send(b'last')")
    launcher.receive(FrameKind.EXITED)
    kinds = [frame.kind for frame in launcher.received]
    assert kinds.index(FrameKind.CONTROL) < kinds.index(FrameKind.EXITED)


def test_messages_for_a_process_that_is_gone_or_never_was_are_dropped(launcher):
    launcher.send(Frame(FrameKind.CONTROL, 5, b"nobody"))
    start(launcher, 0, "")
    launcher.receive(FrameKind.EXITED)
    launcher.send(Frame(FrameKind.CONTROL, 0, b"nobody"))
    launcher.send(Frame.number(FrameKind.END, 0.0, 0))
    start(launcher, 1, "")
    assert launcher.receive(FrameKind.EXITED).process == 1


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_a_process_is_ended_with_all_that_it_has_started(launcher, grace):
    code = "import os, time\nif os.fork() == 0: os.setsid()\nprint('up')\nwhile True: time.sleep(1000)"
    start(launcher, 0, code)
    start(launcher, 1, "input()", stdin=True)
    while launcher.output().count(b"up") < 2:
        launcher.receive(FrameKind.STDOUT)
    launcher.send(Frame.number(FrameKind.END, grace, 0))
    exited = launcher.receive(FrameKind.EXITED)
    assert (exited.process, RankExit.decode(exited.payload).returncode) == (
        0,
        -signal.SIGTERM if grace else -signal.SIGKILL,
    )
    start(launcher, 2, "print('next')")  # waits until nothing is left
    launcher.receive(FrameKind.EXITED)
    left = {int(frame.payload.split()[0]) for frame in of(launcher, 1, FrameKind.STARTED)}
    assert set(family(launcher.job)) == left


def test_one_that_ignores_sigterm_is_killed_after_the_grace(launcher):
    start(
        launcher, 0, "import signal, time\nsignal.signal(15, lambda *_: None)\nprint('up')\nwhile True: time.sleep(9)"
    )
    launcher.receive(FrameKind.STDOUT)
    launcher.send(Frame.number(FrameKind.END, 0.2, 0))
    assert RankExit.decode(launcher.receive(FrameKind.EXITED).payload) == RankExit(-signal.SIGKILL)


def test_what_a_dead_process_has_left_is_gone_before_its_replacement_starts(launcher):
    worker = "import os, time\nfor _ in range(3):\n if os.fork() == 0:\n  os.setsid(); time.sleep(1000)\n"
    start(launcher, 0, worker + "os.write(1, b'up\\n')\ntime.sleep(1000)")  # in one write: it is killed after the first
    launcher.receive(FrameKind.STDOUT)
    pids = family(launcher.job)
    (started,) = of(launcher, 0, FrameKind.STARTED)
    os.kill(int(started.payload.split()[0]), signal.SIGKILL)
    launcher.receive(FrameKind.EXITED)
    start(launcher, 1, ALIVE.replace("PIDS", str(pids)))
    launcher.receive(FrameKind.EXITED)
    assert len(pids) == 4
    assert launcher.output().endswith(b"up\n[]\n")


def test_what_a_process_leaves_that_has_ended_well_goes_on(launcher):
    start(launcher, 0, "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(1000)")
    launcher.receive(FrameKind.EXITED)
    start(launcher, 1, "")
    launcher.receive(FrameKind.EXITED)
    assert len(family(launcher.job)) == 1
    launcher.send(Frame.number(FrameKind.FINISH, 5.0))
    assert launcher.receive(FrameKind.GONE).payload == b"1 0"


def test_without_its_launcher_it_kills_at_once(launcher, tmp_path):
    mark = tmp_path / "asked"
    code = f"import signal, time\nsignal.signal(15, lambda *_: open({str(mark)!r}, 'w'))\nprint('up')\ntime.sleep(1000)"
    start(launcher, 0, code)
    launcher.receive(FrameKind.STDOUT)
    launcher.process.stdin.close()
    assert launcher.process.wait(DEADLINE) == 0
    assert family(launcher.job) == []
    assert not mark.exists()


def test_a_spare_imports_waits_and_then_is_the_command(launcher):
    start(launcher, 0, "unused", is_spare=True)
    launcher.send(Frame(FrameKind.CONTROL, 0, json.dumps(["Preload", {"modules": ["decimal", "nowhere"]}]).encode()))
    assert json.loads(launcher.receive(FrameKind.CONTROL).payload) == ["Warm", {}]
    code = "import sys; print('decimal' in sys.modules, os.environ['A'], 'DISTRUN_SPARE' in os.environ)"
    code += "; print(len(os.environ['LONG']))"
    pieces = encode_pieces(Activate({"CODE": code, "A": "b", "LONG": "+." * 200_000}))
    assert len(pieces) > 1
    for piece in pieces:
        launcher.send(Frame(FrameKind.CONTROL, 0, piece))
    assert RankExit.decode(launcher.receive(FrameKind.EXITED).payload) == RankExit(0, unasked=True)
    assert launcher.output() == b"True b False\n400000\n"


def test_a_spare_is_bound_to_the_cpus_of_its_slot_with_all_its_threads():
    agent = SpokenAgent()
    try:
        agent.start_elastic(secrets.token_hex(16), COMMAND, bind_to="core")
        start(agent, 0, "unused", is_spare=True)
        agent.send(Frame(FrameKind.CONTROL, 0, json.dumps(["Preload", {"modules": []}]).encode()))
        agent.receive(FrameKind.CONTROL)
        code = (
            "import os; print([sorted(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')], "
            "'DISTRUN_SPARE_CPUS' in os.environ)"
        )
        agent.send(Frame(FrameKind.CONTROL, 0, encode_pieces(Activate({"CODE": code, "DISTRUN_SLOT": "3"}))[0]))
        agent.receive(FrameKind.EXITED)
        assert agent.output().decode() == f"{[sorted(cpus.share('core', 1, 2))]} False\n"
    finally:
        agent.close()


def test_there_is_no_spare_of_a_command_that_is_no_python(launcher):
    other = SpokenAgent()
    try:
        other.start_elastic("0" * 32, ["sleep", "1000"])
        start(other, 0, "", is_spare=True)
        assert b"'sleep' is no Python program" in other.receive(FrameKind.NOT_STARTED).payload
    finally:
        other.close()
