"""Limits of the shell (`ulimit`) that end a job or keep it from starting are named, with their value and the remedy."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys

import pytest

from distrun.runner.protocol.exits import NOT_EXECUTABLE

pytestmark = pytest.mark.gate
INIT = "import distrun; distrun.init()"
WRITE = "import os, signal, tempfile; signal.signal(signal.SIGXFSZ, {}); tempfile.TemporaryFile().write(bytes(5 << 20))"
REMEDY = ": raise it where it is set, in the shell (ulimit -"


def lowered(kind, value):
    return lambda: resource.setrlimit(kind, (value, value))


@pytest.mark.parametrize(
    ("kind", "value", "code", "status", "words"),
    [
        (resource.RLIMIT_FSIZE, 4 << 10, INIT, NOT_EXECUTABLE, "the size of files (ulimit -f) is 4 KiB"),
        (resource.RLIMIT_FSIZE, 4 << 20, INIT, 1, "the size of files (ulimit -f) is 4096 KiB"),
        (
            resource.RLIMIT_FSIZE,
            4 << 20,
            WRITE.format("signal.SIG_IGN"),
            1,
            "the size of files (ulimit -f) is 4096 KiB",
        ),
        (resource.RLIMIT_FSIZE, 4 << 20, WRITE.format("signal.SIG_DFL"), 153, "the size of files (ulimit -f) is 4096"),
        (resource.RLIMIT_AS, 4 << 30, "bytearray(8 << 30)", 1, "address space (ulimit -v) is 4194304 KiB"),
        (resource.RLIMIT_NOFILE, 10, INIT, 1, "open files (ulimit -n) is 10"),
        (resource.RLIMIT_NOFILE, 18, INIT, NOT_EXECUTABLE, "open files (ulimit -n) is 18"),
    ],
    ids=["start -f", "init -f", "write -f", "SIGXFSZ", "-v", "launcher -n", "agent -n"],
)
def test_a_limit_that_is_reached_is_named(distrun, python, kind, value, code, status, words):
    launch = distrun("-np", "2", *python(code), before_exec=lowered(kind, value), PYTHONDONTWRITEBYTECODE="1")
    said = launch.ended(status).decode()
    assert f"the limit on {words}" in said
    assert REMEDY in said


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@pytest.mark.parametrize("most", [3, 4])
def test_so_is_the_limit_on_processes_when_the_launcher_reaches_it(most):
    reads = "+dac_override,+dac_read_search"  # as root does
    other = ["setpriv", "--reuid=54321", "--clear-groups", f"--inh-caps={reads}", f"--ambient-caps={reads}", "--"]
    command = [*other, sys.executable, "-m", "distrun", "-np", "2", "/bin/true"]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lowered(resource.RLIMIT_NPROC, most),
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ended.returncode != 0
    assert f"the limit on processes and threads of a user (ulimit -u) is {most}{REMEDY}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_rank_maps_no_more_address_space_than_it_uses(distrun, python):
    """An array makes a rank map 64 MiB of its own memory, and as much of its peer's."""
    code = """
import distrun, numpy as np, psutil
distrun.init()
before = psutil.Process().memory_info().vms
distrun.allreduce(distrun.empty(1 << 20, np.float32))
print(psutil.Process().memory_info().vms - before >> 20)
"""
    launch = distrun("-np", "2", *python(code), before_exec=lowered(resource.RLIMIT_AS, 4 << 30))
    launch.ended(0)
    grown = [int(line.split()[-1]) for line in launch.stdout.text.splitlines()]
    assert len(grown) == 2
    assert max(grown) < 300
