"""Ranks started in a notebook: their output comes at once, an interrupt ends them, and so does the kernel's end."""

from __future__ import annotations

import os
import re

import psutil
import pytest

FUNCTION = """
import distrun

def work(go):
    import os, signal
    print("process", os.getpid())
    {end}

distrun.run(work, ({go!r},), np=2)
"""
CELL = """%%distrun -np 2 -q -- {go}
import os, signal, sys

go = sys.argv[-1]
print("process", os.getpid())
{end}
"""
WAYS = pytest.mark.parametrize("way", [pytest.param(FUNCTION, id="function"), pytest.param(CELL, id="cell")])


def begin(kernel, way, end, go=""):
    """Start two ranks, and return their processes when both have printed something."""
    kernel.begin("%load_ext distrun")
    assert kernel.end() == ""
    kernel.begin(way.format(end=end, go=str(go)))
    kernel.wait_for("[0] process ", "[1] process ")
    return [psutil.Process(int(pid)) for pid in re.findall(r"process (\d+)", kernel.printed)]


@WAYS
def test_output_appears_while_the_ranks_run(kernel, tmp_path, way):
    for rank in "01":
        os.mkfifo(tmp_path / rank)
    begin(kernel, way, "print('went', open(go + os.environ['RANK']).read())", f"{tmp_path}/")
    for rank in "01":
        (tmp_path / rank).write_text("on")
    assert {"[0] went on", "[1] went on"} <= {*kernel.end().splitlines()}
    assert kernel.error is None


@WAYS
def test_an_interrupt_ends_the_ranks_and_the_cell(kernel, way):
    ranks = begin(kernel, way, "signal.pause()")
    assert len(ranks) == 2
    kernel.manager.interrupt_kernel()
    kernel.end()
    assert kernel.error == "KeyboardInterrupt"
    assert not any(rank.is_running() for rank in ranks)
    assert kernel.process.children(recursive=True) == []
    kernel.begin("1 + 1")
    assert kernel.end() == "2"


@WAYS
def test_ranks_end_with_the_kernel(kernel, way):
    ranks = begin(kernel, way, "signal.pause()")
    launched = kernel.process.children(recursive=True)
    kernel.process.kill()
    _, left = psutil.wait_procs({*ranks, *launched}, timeout=60)
    assert left == []


def test_an_exception_is_shown_once_with_the_ranks_traceback(kernel):
    kernel.begin("import distrun\ndef fail(): raise KeyError('no sample')\ndistrun.run(fail, np=2)")
    kernel.end()
    assert kernel.error == "KeyError"
    assert kernel.printed == ""
    assert re.search(r"on rank [01]:", kernel.shown)
    assert kernel.shown.count("in fail") == 1


@pytest.mark.parametrize(
    ("cell", "error", "shown"),
    [
        (
            "%%distrun -np 2 -q\nraise SystemExit(3)",
            "CellError",
            "distrun: the job of this cell ended with exit status 3",
        ),
        ("%%distrun -np two\n1", "CellError", "distrun: the job of this cell ended with exit status 2"),
        ("%%distrun -np 2 train.py\n1", "CellError", "distrun: %%distrun -np 2 train.py: the cell is the script, and"),
        ("%%distrun -np 2\n!ls", "SyntaxError", "!ls"),
    ],
)
def test_a_cell_that_fails_says_why_without_a_traceback_of_distrun(kernel, cell, error, shown):
    kernel.begin("%load_ext distrun")
    assert kernel.end() == ""
    kernel.begin(cell)
    kernel.end()
    assert kernel.error == error
    assert shown in kernel.shown
    assert ("notebook.py" in kernel.shown) == (error == "SyntaxError")
