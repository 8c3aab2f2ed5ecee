"""The page about symptoms: each message that it quotes behind a command is what the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from machines.reader import is_like

pytestmark = pytest.mark.gate

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
QUOTED = re.compile(r"^### (.*)\n(?:(?!### ).*\n)*?```console\n\$ distrun (.*)\n((?:.*\n)*?)```", re.MULTILINE)
REDUCE = "import os, signal, time, numpy as np, distrun\ndistrun.init()\n{}"
SCRIPTS = {
    "No module named 'horovod'": "import horovod.torch",
    "Every rank does the same": "print('loss 0.5')",
    "The ranks train apart": "import distrun; distrun.init()",
    "Some ranks wait for others": REDUCE.format(
        "if distrun.rank() == 0:\n    distrun.allreduce(np.ones(3), name='loss')\ntime.sleep(100)"
    ),
    '"has left", or unequal numbers of steps': REDUCE.format(
        "for _ in range(3 + distrun.rank()): distrun.allreduce(np.ones(3), name='loss')"
    ),
    "The ranks disagree": REDUCE.format("distrun.allreduce(np.ones(3 + distrun.rank()), name='loss')"),
    "Killed by SIGKILL, or out of memory": REDUCE.format(
        "if distrun.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\ndistrun.barrier()"
    ),
}


def nameless(line):
    return re.sub(r"\b(process|pid) \d+", r"\1", line)


def quoted():
    return [pytest.param(*found, id=found[0]) for found in QUOTED.findall(PAGE.read_text())]


@pytest.mark.parametrize(("symptom", "command", "shown"), quoted())
def test_a_command_prints_what_the_page_says(distrun, tmp_path, monkeypatch, symptom, command, shown):
    (tmp_path / "train.py").write_text(SCRIPTS.get(symptom, "pass\n"))
    monkeypatch.chdir(tmp_path)
    job = distrun(*shlex.split(command))
    job.wait()
    lines = [nameless(line.strip()) for line in (job.stdout.text + job.stderr.text).splitlines()]
    for line in shown.replace("\n    ", " ").splitlines():
        assert any(is_like(each, nameless(line)) for each in lines), (line, lines)


def test_no_script_of_these_is_left_over():
    assert set(SCRIPTS) <= {found[0] for found in QUOTED.findall(PAGE.read_text())}
    assert PAGE.read_text().count("\n### ") >= 20
