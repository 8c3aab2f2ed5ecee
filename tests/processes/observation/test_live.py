"""The live view in a real terminal, tmux: who is slow, progress bars, keys; and `ps` and `top` beside a running job."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from machines.system_packages import why_missing
from shell import MARK, kill_all, lives, wait_until

TRAINING = """
import sys, time, numpy as np, distrun
from distrun.tracing import layout, recording
distrun.init()
last = distrun.rank() == distrun.size() - 1
for step in range(int(sys.argv[1])):
    recording.enter(layout.INPUT)
    time.sleep(0.021 if last else 0.001)
    recording.enter(layout.FORWARD, 32)
    time.sleep(0.02)
    distrun.allreduce(np.ones(1000), "gradients")
    recording.enter(layout.OPTIMIZER)
    recording.step_done()
    if step % 50 == 0:
        print("step", step, flush=True)
"""
BARS = """
import os, sys, time, tqdm, distrun
distrun.init()
for step in tqdm.tqdm(range(60), mininterval=0.01):
    time.sleep(0.1)
    while step == 50 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
print("trained", flush=True)
"""
LAUNCHER = [sys.executable, "-m", "distrun.runner"]


class Terminal:
    """A terminal with a shell in it."""

    def __init__(self, directory: Path, columns: int = 110, rows: int = 30) -> None:
        self._marker = uuid.uuid4().hex
        self._tmux = ["tmux", "-S", str(directory / "tmux"), "-f", "/dev/null"]
        environ = {**os.environ, "PS1": "$ ", "HISTFILE": "", MARK: self._marker}
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run([*self._tmux, "new-session", "-d", *size, "bash --norc --noprofile"], env=environ, check=True)

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names, or type text."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def run(self, command: list[str]) -> None:
        """Have the shell run a command."""
        self.type(shlex.join(command), "Enter")

    def screen(self) -> str:
        """Return what there is to see, and what has scrolled away."""
        shown = subprocess.run(
            [*self._tmux, "capture-pane", "-p", "-J", "-S", "-2000"], check=True, capture_output=True
        )
        return shown.stdout.decode()

    def wait_for(self, pattern: str) -> None:
        """Wait until something is shown."""
        try:
            wait_until(lambda: bool(re.search(pattern, self.screen(), re.MULTILINE)))
        except AssertionError:
            raise AssertionError(f"{pattern!r} is not shown:\n{self.screen()}") from None

    def family(self) -> list[psutil.Process]:
        """Return what the shell has started."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._marker and "distrun" in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if lives(process)]

    def close(self) -> None:
        """Leave nothing behind."""
        subprocess.run([*self._tmux, "kill-server"], check=False)
        kill_all(self.family())


@pytest.fixture(scope="session")
def tmux() -> None:
    """Skips where there is no tmux."""
    if reason := why_missing({"tmux": "tmux"}):
        pytest.skip(reason)


@pytest.fixture
def terminal(tmux: None, tmp_path: Path) -> Iterator[Callable[[], Terminal]]:
    """Makes terminals."""
    made: list[Terminal] = []

    def make() -> Terminal:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Terminal(directory))
        return made[-1]

    yield make
    for one in made:
        one.close()


def training(*options: str, ranks: int = 2, steps: int = 4000) -> list[str]:
    return [*LAUNCHER, *options, "-np", str(ranks), "--oversubscribe", sys.executable, "-c", TRAINING, str(steps)]


def sockets(pid: int) -> list[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()
    return [line for line in lines if line.endswith(f"/{pid}") and "@distrun/" in line]


def test_a_slow_rank_is_named_and_what_is_written_scrolls_above(terminal):
    shown = terminal()
    shown.run(training("--live", ranks=3, steps=400))
    named = r"slow now: rank 2 on localhost costs every step \d+ ms \(\d+ %\): it waits for its input"
    shown.wait_for(named)
    shown.wait_for(r"^0 localhost +[\d.]+ +[\d,.]+ .*step \d+")
    shown.wait_for(r"^localhost: CPU \d+ %, memory \d+ %, network in ")
    shown.wait_for(r"^s stack  l log  q close the view")
    wait_until(lambda: not shown.family())
    screen = shown.screen()
    for rank in (0, 1, 2):
        assert re.findall(rf"^\[{rank}\] step (\d+)$", screen, re.M) == [str(step) for step in range(0, 400, 50)]
    assert "slow now" not in screen, "the panel goes with the job"


@pytest.mark.gate
def test_the_bar_of_rank_0_is_shown_and_the_others_are_counted(terminal, tmp_path):
    pytest.importorskip("tqdm")
    shown = terminal()
    shown.run([*LAUNCHER, "--live", "-np", "3", "--oversubscribe", sys.executable, "-c", BARS, str(tmp_path / "seen")])
    shown.wait_for(r"^ *\d+%\|.*\d+/60 \[.*\n.*3 ranks")
    shown.wait_for(r"2 more progress bars")
    shown.wait_for(r"\d:\d\d left")
    (tmp_path / "seen").touch()
    wait_until(lambda: not shown.family())
    screen = shown.screen()
    assert len(re.findall(r"60/60 \[", screen)) == 1
    assert sorted(re.findall(r"^\[(\d)\] trained$", screen, re.M)) == ["0", "1", "2"]


@pytest.mark.gate
def test_keys_show_a_stack_and_a_log_and_close_the_view_while_the_job_goes_on(terminal):
    shown = terminal()
    shown.run(training("--live"))
    shown.wait_for(r"^1 localhost +[\d.]+ +[\d,.]+ .*step \d+")
    shown.type("s")
    shown.wait_for(r"the stack of rank: \(number, Enter\)")
    shown.type("1", "Enter")
    shown.wait_for(r"rank 1 has these threads:\nmain thread:\n(.*\n)*.*in <module>")
    shown.type("l", "0", "Enter")
    shown.wait_for(r"the last lines of rank 0:\n  step \d+$")
    shown.type("q")
    shown.wait_for("the view is closed, and the job goes on")
    last = int(re.findall(r"^\[0\] step (\d+)$", shown.screen(), re.M)[-1])
    shown.wait_for(rf"^\[0\] step {last + 100}$")
    assert "q close the view" not in shown.screen()
    shown.type("C-c")
    wait_until(lambda: not shown.family())
    shown.run(["stty", "-a"])
    shown.wait_for(r"(?s)[^-]icanon.*[^-]echo ")


def test_of_a_program_without_distrun_it_says_that_nothing_is_heard_and_q_twice_ends_it(terminal):
    shown = terminal()
    shown.run([*LAUNCHER, "--live", "-np", "2", "--oversubscribe", "sh", "-c", "echo begun; sleep 100"])
    shown.wait_for(r"^nothing heard yet of ranks 0-1: ranks tell of themselves from distrun.init\(\) on")
    for rank in (0, 1):
        shown.wait_for(rf"^{rank} localhost +\d+ % .* begun")
    shown.type("q", "q")
    wait_until(lambda: not shown.family())


@pytest.mark.gate
def test_top_shows_a_job_that_runs_and_leaves_no_trace(terminal):
    job, onlooker, other = terminal(), terminal(), terminal()
    job.run(training())
    job.wait_for(r"^\[0\] step 50$")
    launcher = next(one for one in job.family() if "--oversubscribe" in one.cmdline())
    wait_until(lambda: bool(sockets(launcher.pid)))
    threads = launcher.num_threads()
    onlooker.run([*LAUNCHER, "ps"])
    onlooker.wait_for(rf"^\w+ +{launcher.pid} +2 +localhost +\d+:\d\d +- .* distrun from distrun.tracing import")
    for one in (onlooker, other):
        one.run([*LAUNCHER, "top", str(launcher.pid)])
    for one in (onlooker, other):
        one.wait_for(r"slow now: rank 1 on localhost")
    onlooker.type("s", "0", "Enter")
    onlooker.wait_for(r"rank 0 has these threads:\nmain thread:")
    onlooker.type("q")
    wait_until(lambda: not onlooker.family())
    other.wait_for("q close the view")
    other.type("C-c")
    wait_until(lambda: not other.family())
    wait_until(lambda: launcher.num_threads() == threads)
    other.run([*LAUNCHER, "top", str(launcher.pid)])  # the names of operations are told again
    other.wait_for(r"slow now: rank 1 on localhost")
    onlooker.run([*LAUNCHER, "top", "nobody"])
    onlooker.wait_for(r"(?s)error: no job is called 'nobody': there are .*see distrun ps")
    job.type("C-c")
    other.wait_for(r"job \w+ is over, with exit status 130")
    wait_until(lambda: not job.family())
    assert sockets(launcher.pid) == []
