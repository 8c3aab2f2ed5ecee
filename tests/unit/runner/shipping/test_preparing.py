"""The conversation by which a host gets what it lacks: what it may ask for, what it keeps, and what users see."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from distrun.runner.hosts.introduction import introduce
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import MAGIC, HostError
from distrun.runner.shipping import environment, package, second_stage
from distrun.runner.shipping.cache import discard_unused
from distrun.runner.shipping.delivery import Delivery
from distrun.runner.shipping.first_stage import is_intact


@pytest.mark.parametrize(
    "question",
    [
        {"ask": "package", "name": "json"},
        {"ask": "package", "name": ["distrun"]},
        {"ask": "package"},
        {"ask": "manifest", "tree": 0},
        {"ask": "contents", "tree": "a", "digests": []},
        {"ask": "contents", "tree": 0},
        {"ask": "anything"},
    ],
)
def test_a_host_gets_nothing_else_than_what_is_brought(question):
    with pytest.raises(HostError, match="it asks for .*" + question["ask"]):
        list(Delivery().answer(question))


def test_no_package_is_sent_where_that_is_forbidden():
    with pytest.raises(HostError, match=r"it asks for .*distrun"):
        list(Delivery(brings_itself=False).answer({"ask": "package", "name": "distrun"}))


class Said:
    """A program on a host, which says something."""

    python = "python3"

    def __init__(self, *said):
        frames = (Frame(FrameKind.HELLO, payload=json.dumps(words).encode()).encode() for words in said)
        self._data = b"".join(MAGIC + frame for frame in frames)

    def write(self, data):
        pass

    def read(self, timeout):
        data, self._data = self._data, b""
        return data


def test_the_python_of_an_environment_that_a_host_has_made_is_known():
    host = Said({"paths": ["/c/p"]}, {"paths": ["/c/p"], "python": "/c/e/bin/python"}, {"distrun": "1"})
    made = introduce(host, Delivery(), b"", float("inf"))
    assert (made.folders, made.python) == (["/c/p"], "/c/e/bin/python")
    assert introduce(Said({"paths": ["/c/p"]}, {"distrun": "1"}), Delivery(), b"", float("inf")).python == ""


def test_a_host_that_takes_no_more_is_sent_no_more():
    tried = []

    class Stuck(Said):
        def write(self, data):
            tried.append(data)
            if len(tried) > 1:  # after the greeting
                raise TimeoutError

        def explain_start(self, output):
            return "it has ended"

        def wait(self):
            return 1

    class Large(Delivery):
        def answer(self, question):
            yield from [b"piece"] * 100

    with pytest.raises(HostError, match="it has ended"):
        introduce(Stuck({"ask": "contents"}), Large(), b"", float("inf"))
    assert len(tried) < 5


def test_a_question_without_its_values_is_refused():
    with pytest.raises(HostError, match="it asks for"):
        introduce(Said({"ask": "contents"}), Delivery(), b"", float("inf"))


class Sender:
    """A launcher that sends a package, whatever it is asked for."""

    def __init__(self, packed):
        self._packed = packed
        self.asked = 0

    def ask(self, **question):
        self.asked += 1
        return self._packed

    def refuse(self, problem):
        raise HostError(problem)


def bring(cache, packed=None, launcher=None, comparison=is_intact):
    """Have a package brought to a cache, as it is here unless `packed` is given, and return its place."""
    launcher = launcher or Sender(packed or package.archive("cloudpickle"))
    wanted = package.package_digest("cloudpickle")
    return Path(second_stage._brought(launcher, str(cache), "cloudpickle", wanted, comparison))


def test_what_was_added_to_a_package_on_its_way_is_not_unpacked(own_cache):
    packed = io.BytesIO(package.archive("cloudpickle"))
    with zipfile.ZipFile(packed, "a") as file:
        for name in ("psutil.py", "cloudpickle/__pycache__/compat.cpython-311.pyc", "cloudpickle/x.pyc", "../out.py"):
            file.writestr(name, "raise SystemExit")
        file.writestr("cloudpickle/__pycache__/compat.py", "raise SystemExit")

    place = bring(own_cache, packed.getvalue())
    assert [path.name for path in place.iterdir()] == ["cloudpickle"]
    found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert found == set(zipfile.ZipFile(io.BytesIO(package.archive("cloudpickle"))).namelist())


def lose_all(place):
    shutil.rmtree(place)
    place.mkdir()


def change_file(place):
    (place / "cloudpickle" / "__init__.py").write_text("raise SystemExit")


def become_file(place):
    shutil.rmtree(place)
    place.touch()


@pytest.mark.parametrize("damage", [lose_all, change_file, become_file])
def test_a_package_that_was_damaged_in_the_cache_is_sent_anew(own_cache, damage):
    damage(bring(own_cache))
    launcher = Sender(package.archive("cloudpickle"))
    place = bring(own_cache, launcher=launcher)
    assert is_intact(str(place / "cloudpickle"), place.name)
    assert launcher.asked == 1
    bring(own_cache, launcher=launcher)
    assert launcher.asked == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_another_launch_brings_meanwhile_stays(own_cache, is_damaged):
    if is_damaged:
        change_file(bring(own_cache))
    brought = []

    def looked(folder, wanted):
        found = is_intact(folder, wanted)
        if not brought:
            brought.append(None)
            brought[0] = bring(own_cache).stat().st_ino
        return found

    assert bring(own_cache, comparison=looked).stat().st_ino == brought[0]


def test_a_package_that_another_launch_would_delete_after_it_was_found_stays(own_cache):
    place = own_cache / "packages" / package.package_digest("cloudpickle")
    with zipfile.ZipFile(io.BytesIO(package.archive("cloudpickle"))) as file:
        file.extractall(place)  # nobody holds it

    def looked(folder, wanted):
        found = is_intact(folder, wanted)
        discard_unused(str(place))
        return found

    assert is_intact(str(bring(own_cache, comparison=looked) / "cloudpickle"), place.name)


def test_a_damaged_package_that_cannot_be_deleted_is_not_used(own_cache, monkeypatch):
    place = bring(own_cache)
    change_file(place)
    real = os.rename

    def refused(source, target):
        if source == str(place):
            raise PermissionError(1, "Operation not permitted")
        real(source, target)

    monkeypatch.setattr("os.rename", refused)
    with pytest.raises(HostError, match=f"{place}: try again, or delete that there first"):
        bring(own_cache)


def test_a_package_of_a_job_that_runs_stays(own_cache):
    place = bring(own_cache)
    place.rename(place.with_name("old"))  # of another version, and this process has it still
    for number in range(12):
        place.with_name(f"over{number}").mkdir()
        os.utime(place.with_name(f"over{number}"), (number, number))
    os.utime(place.with_name("old"), (0, 0))
    bring(own_cache)
    over = [f"over{number}" for number in range(5, 12)]
    assert sorted(os.listdir(place.parent)) == sorted([place.name, "old", *over])


def test_users_and_passwords_of_indexes_are_not_shown():
    said = "ERROR: no torch at https://user:se@cret@a.b/simple\nERROR: git+https://token@a.b/c failed\n"
    assert environment._end_of(said) == "no torch at https://***@a.b/simple; git+https://***@a.b/c failed"


def test_options_of_pip_are_not_shown_and_credentials_are_hidden(tmp_path, monkeypatch):
    told, run = [], []

    class Launcher:
        def tell(self, **said):
            told.append(said)

    monkeypatch.setattr(environment, "_run", lambda launcher, command: run.append(command))
    lines = ["--index-url https://user:secret@a.b", "torch", "own @ git+https://token@a.b/own"]
    environment._install(Launcher(), str(tmp_path), lines)
    assert told == [{"step": "installing torch, own @ git+https://***@a.b/own"}]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == lines
    assert len(run) == 1
