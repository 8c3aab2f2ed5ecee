"""Running a module of ours here, and the command that runs one elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from distrun import __version__
from distrun.runner.hosts.program import PROBE, LocalProgram, first_frame, remote_command
from distrun.runner.protocol.handshake import HostError, HostInfo
from distrun.runner.shipping.delivery import Delivery

pytestmark = pytest.mark.gate


@pytest.fixture
def probe():
    program = LocalProgram(PROBE, subprocess.DEVNULL)
    yield program
    program.kill()
    program.wait()
    program.close()


def test_a_program_introduces_itself_and_leaves_when_its_input_ends(probe):
    payload, rest = first_frame(probe, time.monotonic() + 30)
    assert HostInfo.from_json(payload).distrun == __version__
    assert rest == b""
    probe.end_input()
    assert probe.read(30) == b""
    assert probe.wait() == 0


def test_a_program_that_says_nothing_is_late(probe):
    first_frame(probe, time.monotonic() + 30)
    with pytest.raises(HostError, match=r"nothing was heard from .*python.* in time"):
        first_frame(probe, time.monotonic())


def test_a_program_that_ends_without_a_word_is_explained():
    program = LocalProgram("distrun.runner.no_such_module", subprocess.DEVNULL)
    with pytest.raises(HostError, match=r"did not start \(exit code 1\): it wrote nothing"):
        first_frame(program, time.monotonic() + 30)
    program.close()


def test_the_remote_command_runs_a_module_and_names_it_in_the_list_of_processes(tmp_path):
    opening = Delivery().opening()
    command = remote_command(sys.executable, PROBE, opening.code)
    assert command[-1] == PROBE
    (tmp_path / "json.py").write_text("raise SystemExit('the current directory was searched')")
    environ = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environ, input=opening.text, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert __version__.encode() in done.stdout
