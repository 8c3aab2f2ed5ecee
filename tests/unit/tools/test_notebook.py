"""The cell magic: what `%load_ext distrun` finds, and lines that start nothing."""

from __future__ import annotations

import sys

import pytest

import distrun
from distrun.tools import notebook
from distrun.tools.notebook import CellError, run_cell


class Shell:
    """The part of IPython's shell that an extension uses."""

    def register_magic_function(self, function, kind, name):
        self.magic = function, kind, name


def test_the_package_is_an_extension_of_ipython():
    shell = Shell()
    distrun.load_ipython_extension(shell)
    assert shell.magic == (run_cell, "cell", "distrun")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("-np 2 python train.py", "the cell is the script, and 'python' is no option of distrun: give options, and"),
        ("2", "the cell is the script, and '2' is no option of distrun"),
        ("-np 2 --auto cell", "the cell is the script, and 'cell' is no option"),
        ("--nosuch", "there is no option --nosuch: see %%distrun --help"),
        ("--gpus 2", "there is no option --gpus: did you mean -H"),
        ("-np '2", "No closing quotation"),
    ],
)
def test_a_line_that_has_more_than_options_is_refused(monkeypatch, line, complaint):
    monkeypatch.setattr(notebook, "_run", lambda words: pytest.fail(f"started {words}"))
    with pytest.raises(CellError) as refused:
        run_cell(line, "1")
    assert str(refused.value).startswith(f"%%distrun {line}: {complaint}")
    assert refused.value._render_traceback_() == [f"distrun: {refused.value}"]


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        ("", [], []),
        ("-np 2 --auto", ["-np", "2", "--auto"], []),
        ("-np 2 -- --epochs '3 4'", ["-np", "2"], ["--epochs", "3 4"]),
        ("-H b:2 --live", ["-H", "b:2", "--live", "--ship", "FOLDER"], []),
        ("-host b -np 2", ["-host", "b", "-np", "2", "--ship", "FOLDER"], []),
        ("-H b:2 --launcher mpirun", ["-H", "b:2", "--launcher", "mpirun"], []),
    ],
)
def test_the_cell_stands_behind_the_options(monkeypatch, line, before, after):
    def started(words):
        at = next(at for at, word in enumerate(words) if word in ("python3", sys.executable))
        assert (words[at] == "python3") == any(word in words for word in ("-H", "-host"))
        script = words[at + 1]
        with open(script) as file:
            assert file.read() == "print(1)"
        folder = script.removesuffix("/cell.py")
        assert [word.replace(folder, "FOLDER") for word in words[:at]] == before
        assert words[at + 2 :] == after
        return 0

    monkeypatch.setattr(notebook, "_run", started)
    run_cell(line, "print(1)")


def test_the_cell_is_brought_to_the_nodes_of_an_allocation(monkeypatch):
    monkeypatch.setattr(notebook.allocation, "current", lambda environ: object())
    monkeypatch.setattr(notebook, "_run", lambda words: "--ship" not in words[:2] or words[-2] != "python3")
    run_cell("", "1")
