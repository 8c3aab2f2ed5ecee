"""How scripts/test chooses tests, resumes parts and counts what pytest says."""

import threading
from pathlib import Path
from types import SimpleNamespace

import changed
import parts
import pytest
import streams
from session import processor_time
from session.tiers import FOLDERS, ROOT, folder_of, in_turn, one_in_gate, tier_of


def names(folders):
    return [folder.name for folder in folders]


def test_every_folder_of_the_table_exists_and_is_about_rooms_that_exist():
    for folder in FOLDERS:
        assert (ROOT / "tests" / folder.name).is_dir(), folder.name
        for room in folder.rooms:
            path = ROOT / "distrun" / room.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"{folder.name}: {room}"


def test_a_file_belongs_to_the_innermost_folder_of_the_table():
    tests = ROOT / "tests"
    assert folder_of(tests / "processes" / "test_cli.py").name == "processes"
    assert folder_of(tests / "processes" / "sweep" / "test_ends.py").name == "processes/sweep"
    with pytest.raises(pytest.UsageError, match=r"nowhere.py lies in no folder that tests/support/session"):
        folder_of(tests / "elsewhere" / "nowhere.py")


@pytest.mark.parametrize("value", [*one_in_gate("a", pytest.param("b", id="second")), "c"])
@pytest.mark.parametrize("other", in_turn(1, 2, 3))
def test_of_a_product_of_matrices_one_case_is_in_the_gate(value, other, request):
    of_both = {mark.name for mark in request.node.callspec.marks}
    assert tier_of(request.node) == ("full" if "full" in of_both else "gate")
    assert ("full" in of_both) is (value == "b") or "full" in of_both


def test_rooms_are_named_by_their_path_in_the_package_or_in_the_tests():
    assert "hosts/shipping" in names(parts.of_rooms(["runner/shipping"]))
    assert "processes/sweep" not in names(parts.of_rooms(["runner/shipping"]))
    assert names(parts.of_rooms(["tests/gpu"])) == ["gpu", "gpu/real"]
    assert len(parts.of_rooms([])) == len(FOLDERS)
    with pytest.raises(ValueError, match=r"^runer is neither a room of distrun/ nor a folder of tests/$"):
        parts.of_rooms(["runer"])


def test_a_part_leaves_out_the_folders_below_it_that_are_parts_themselves():
    (gpu,) = (folder for folder in FOLDERS if folder.name == "gpu")
    assert parts.part(gpu, parts.LAB) == parts.Part(
        "gpu (lab)", "compute", ("tests/gpu", "--ignore=tests/gpu/real", "--tier=lab")
    )


def test_a_change_concerns_the_folders_about_its_room_and_the_rooms_that_import_it_directly():
    importers = {"distrun.runner.shipping.tree": ["distrun.tools.sweep.sweep"]}.get
    found = changed.concerned([Path("distrun/runner/shipping/tree.py")], lambda module: importers(module, ()))
    assert {"hosts/shipping", "processes/shipping", "processes/sweep", "unit"} <= set(names(found.folders))
    assert not {"engines/ray", "frameworks/torch", "parallel/failures"} & set(names(found.folders))


def test_a_changed_test_module_concerns_itself_and_a_changed_program_its_folder():
    module = Path(__file__).relative_to(ROOT)
    found = changed.concerned([module, Path("docs/design.md"), Path("tests/gone/test_gone.py")], lambda _: ())
    assert (found.folders, found.modules) == ((), (module,))
    found = changed.concerned([Path("tests/gpu/programs/binding.py")], lambda _: ())
    assert (names(found.folders), found.modules) == (["gpu"], ())


def test_a_changed_module_of_support_concerns_the_folders_that_import_it():
    found = changed.concerned([Path("tests/support/plain_script_cases.py")], lambda _: ())
    assert names(found.folders) == ["unit", "frameworks/auto/scripts"]  # this file names it, too


def test_modules_are_named_by_their_path():
    assert changed.module_of(Path("distrun/runner/__init__.py")) == "distrun.runner"
    assert changed.module_of(Path("distrun/tensor_fusion/packing.cu")) == "distrun.tensor_fusion"


def test_the_table_of_parts_leaves_out_those_without_tests():
    row = {"commit": "abc", "is_good": True, "passed": 12, "failed": 0, "minutes": 3.25}
    rows = {"gpu": row, "unit": {**row, "passed": 0}, "slurm": {**row, "failed": 1, "is_good": False}}
    assert parts.table(rows, ["gpu", "unit", "slurm"]).splitlines() == [
        "part   passed  failed  minutes  commit",
        "gpu        12       0      3.2  abc",
        "slurm      12       1      3.2  abc  FAILED",
    ]


def test_pytests_closing_line_is_counted():
    text = "1 passed in 3.2s of what a program under test printed\n"
    assert streams._counts(f"{text}=== 2 failed, 310 passed, 4 skipped, 1 error in 635.31s (0:10:35) ===\n") == (310, 3)
    assert streams._counts("no tests ran in 0.01s\n") == (0, 0)


def test_the_last_lines_of_a_command_are_kept(monkeypatch):
    class Failing:
        def __init__(self, words, *, stdout, **options):
            stdout.write(b"\n".join(b"%d" % number for number in range(1000)) + b"\nover its budget\n")
            stdout.flush()

        def wait(self):
            return 1

    monkeypatch.setattr(streams.subprocess, "Popen", Failing)
    (outcome,) = streams.Runner(limit=3600).run({"stream": [streams.Command("tests", ("false",))]})
    assert (outcome.status, outcome.is_good) == (1, False)
    assert outcome.closing.splitlines()[:: streams.CLOSING_LINES - 1] == ["951", "over its budget"]


@pytest.mark.parametrize(("share", "is_named", "status"), [(0.9, False, 0), (1.5, True, 0), (2.1, True, 1)])
def test_a_folder_over_its_budget_is_named_and_at_twice_the_budget_fails(share, is_named, status, monkeypatch):
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    folder = FOLDERS[0]
    plugin = processor_time.ProcessorTimePlugin(is_gate=True)
    monkeypatch.setattr(plugin, "_seconds", {folder.name: {"a": share * folder.budget}})
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)
    lines = []
    plugin.pytest_terminal_summary(
        SimpleNamespace(section=lines.append, write_line=lambda line, **style: lines.append(line))
    )
    assert session.exitstatus == status
    assert any(line.startswith(f"tests/{folder.name} has used") for line in lines) == is_named


def test_a_wedged_run_is_aborted(monkeypatch, capsys):
    """Instead of processes, there are objects that end by a signal only. The time is up when the first has begun."""

    class Wedged:
        def __init__(self, *arguments, **options):
            self.ended = threading.Event()
            threading.Thread(target=runner._abort).start()

        def send_signal(self, signum):
            self.signum = signum
            self.ended.set()

        def wait(self):
            self.ended.wait()
            return -self.signum

    monkeypatch.setattr(streams.subprocess, "Popen", Wedged)
    monkeypatch.setattr(streams.subprocess, "run", lambda *arguments, **options: None)
    commands = [streams.Command("first", ("true",)), streams.Command("second", ("true",))]
    runner = streams.Runner(limit=3600)
    (outcome,) = runner.run({"stream": commands})
    assert (outcome.name, outcome.status, outcome.is_good) == ("first", -6, False)
    assert "== not ended within 60 min; aborted. The processes:" in capsys.readouterr().out
