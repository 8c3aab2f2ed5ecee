"""The logger `distrun`: where the messages of a rank go, and which."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import logging
{before}
import distrun

distrun.init()
logging.getLogger("distrun").{level}("a message")
"""


@pytest.mark.parametrize(
    ("level", "setting", "printed"),
    [
        ("info", "", ""),
        ("warning", "", "distrun: a message\n"),
        ("info", "info", "distrun: a message\n"),
        ("warning", "error", ""),
    ],
)
def test_messages_from_a_level_on_are_printed(level, setting, printed):
    assert said(level, DISTRUN_LOG_LEVEL=setting) == printed


def test_messages_may_have_the_time():
    assert said("warning", DISTRUN_LOG_TIME="1")[:2] == "20"


def test_a_handler_of_the_script_replaces_the_printing(tmp_path):
    log = tmp_path / "log"
    assert said("warning", before=f"logging.getLogger('distrun').addHandler(logging.FileHandler({str(log)!r}))") == ""
    assert log.read_text() == "a message\n"


def said(level: str, before: str = "", **environ: str) -> str:
    program = PROGRAM.format(before=before, level=level)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stderr
