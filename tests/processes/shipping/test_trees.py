"""Folders from here to there: whatever a user does to one, a host's copy is the same, and costs what has changed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from hypothesis.strategies import binary, sampled_from

from distrun.errors import UsageError
from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping import snapshot, trees
from distrun.runner.shipping.cache import explain, open_cache
from distrun.runner.shipping.delivery import Delivery
from distrun.runner.shipping.options import deliver

pytestmark = pytest.mark.gate

NAMES = sampled_from(["a", "b", "in/a", "in/b", "in/deep/c", "d\udcff"])
LARGE = 1 << 30


class Conversation:
    """The launcher, as a host of this process speaks with it."""

    def __init__(self, taken):
        self._delivery = Delivery(snapshots=(taken,))
        self._pieces = iter(())
        self.sent = 0

    def ask(self, **question):
        self._pieces = self._delivery.answer(question)
        return self.receive()

    def receive(self):
        piece = next(self._pieces)
        self.sent += len(piece)
        return piece

    def refuse(self, problem):
        raise HostError(problem)


def state(folder):
    """Return all that a folder has, but for what says what was shipped."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = os.path.join(place, name)
            status = os.lstat(path)
            is_file = stat.S_ISREG(status.st_mode)
            content = Path(path).read_bytes() if is_file else os.readlink(path) if os.path.islink(path) else ""
            mode = 0 if os.path.islink(path) else stat.S_IMODE(status.st_mode)
            found[os.path.relpath(path, folder)] = (content, mode, status.st_mtime_ns if is_file else 0)
    found.pop(trees.RECORD, None)
    return found


def ship(folder, cache, to=""):
    """Ship a folder; return where it is now, and the bytes that it took."""
    taken = snapshot.take(str(folder), to, LARGE)
    conversation = Conversation(taken)
    task = {"job": "job", "to": to, "manifest": taken.digest}
    return trees.receive(conversation, str(cache), 0, task), conversation.sent - len(taken.packed)


class Folder(RuleBasedStateMachine):
    """Changes to a folder, and a copy that follows, of each kind."""

    base = None

    @initialize()
    def begin(self):
        shutil.rmtree(self.base, ignore_errors=True)
        (self.base / "folder").mkdir(parents=True)
        (self.base / "cache").mkdir()
        self.contents = set()

    def path(self, name, is_free=False):
        path = self.base / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_free and (path.is_symlink() or path.exists()):
            path.unlink()
        return path

    @rule(name=NAMES, data=binary(max_size=50))
    def write(self, name, data):
        self.path(name, is_free=True).write_bytes(data)

    @rule(name=NAMES, leads_to=NAMES)
    def link(self, name, leads_to):
        self.path(name, is_free=True).symlink_to(leads_to)

    @rule(name=NAMES, mode=sampled_from([0o600, 0o644, 0o755, 0o444]))
    def change_mode(self, name, mode):
        path = self.path(name)
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)

    @rule(name=NAMES)
    def delete(self, name):
        self.path(name, is_free=True)

    @rule(name=NAMES, other=NAMES)
    def rename(self, name, other):
        path = self.path(name)
        if path.is_symlink() or path.exists():
            path.rename(self.path(other))

    @rule()
    def delete_folder(self):
        shutil.rmtree(self.base / "folder" / "in", ignore_errors=True)

    @invariant()
    def copies_are_the_same(self):
        if self.base is None or not (self.base / "folder").is_dir():
            return
        expected = state(self.base / "folder")
        contents = {value[0] for value in expected.values() if isinstance(value[0], bytes) and value[0]}
        new = contents - self.contents
        self.contents |= contents
        place, sent = ship(self.base / "folder", self.base / "cache")
        assert state(place) == expected
        assert sent == sum(map(len, new))
        kept, again = ship(self.base / "folder", self.base / "cache", str(self.base / "kept"))
        assert state(kept) == expected
        assert again == 0


def test_any_history_of_a_folder_is_followed(tmp_path):
    Folder.base = tmp_path / "machine"
    run_state_machine_as_test(Folder, settings=settings(stateful_step_count=12))


@pytest.mark.parametrize("value", ["", "cache", "./cache"])
def test_a_cache_that_is_no_absolute_path_does_not_count(own_cache, value):
    assert open_cache({"XDG_CACHE_HOME": value}) == str(own_cache / ".cache" / "distrun")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_a_folder_among_the_temporary_files_that_another_user_has_taken_is_left_to_that_user(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"distrun-{os.getuid()}"
    taken.mkdir()
    os.chown(taken, 65534, 65534)
    cache = open_cache({"XDG_CACHE_HOME": "/proc/none"})
    assert cache.startswith(f"{taken}-")
    assert os.stat(cache).st_mode & 0o777 == 0o700
    assert open_cache({"XDG_CACHE_HOME": "/proc/none"}) == cache
    os.chown(cache, 65534, 65534)
    assert open_cache({"XDG_CACHE_HOME": "/proc/none"}) not in (cache, str(taken))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("first")
    return folder


@pytest.fixture
def kept(tmp_path):
    """The place of a copy that the user has named."""
    return tmp_path / "kept"


def test_a_folder_is_known_by_its_names_through_links(folder, tmp_path, monkeypatch):
    (tmp_path / "home").symlink_to(tmp_path)
    through = tmp_path / "home" / "folder"
    assert snapshot.take(str(through), "", LARGE).names == (str(folder), str(through))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(through))
    (folder / "in").mkdir()
    (folder / "in" / "link").symlink_to(through / "a")
    for given in (".", "../folder", "in/.."):
        taken = snapshot.take(given, "", LARGE)
        assert taken.names == (str(folder), str(through))
        assert taken.manifest.links[0].target == "../a"
    (message,) = json.loads(Delivery(snapshots=(taken,)).opening("job").text.partition(b"\n")[0])["tasks"]["trees"]
    assert message["names"] == [str(folder), str(through)]
    monkeypatch.setenv("PWD", str(tmp_path))  # of a program that has changed its folder
    assert snapshot.take(".", "", LARGE).names == (str(folder),)


def test_a_file_that_changes_after_the_launch_began_is_noticed(folder, own_cache):
    taken = snapshot.take(str(folder), "", LARGE)
    (folder / "a").write_text("other")
    with pytest.raises(HostError, match="folder/a has changed since the launch began"):
        trees.receive(Conversation(taken), str(own_cache), 0, {"job": "j", "to": "", "manifest": taken.digest})
    assert os.listdir(own_cache / "blobs") == []


def test_a_file_that_changes_while_it_is_read_is_refused(folder, monkeypatch):
    def grow(self, name, path, found):
        with open(path, "a") as file:
            file.write("more")
        return "digest", 9

    monkeypatch.setattr("distrun.runner.shipping.snapshot.Digests.of", grow)
    with pytest.raises(UsageError, match="folder/a changes while it is read"):
        snapshot.take(str(folder), "", LARGE)


def test_a_change_of_the_same_size_and_time_is_seen(folder):
    (folder / "a").write_text("first")
    os.utime(folder / "a", ns=(0, 0))
    before = snapshot.take(str(folder), "", LARGE).manifest.files[0]
    (folder / "a").write_text("other")
    os.utime(folder / "a", ns=(0, 0))
    after = snapshot.take(str(folder), "", LARGE).manifest.files[0]
    assert (before.size, before.mtime) == (after.size, after.mtime)
    assert after.digest == hashlib.sha256(b"other").hexdigest()


def test_files_whose_size_the_file_system_does_not_say_come_whole(own_cache):
    source = Path("/proc/sys/fs/inotify")  # stat says 0 for each, as some file systems of FUSE do
    if not source.is_dir():
        pytest.skip("there is no /proc/sys/fs/inotify")
    place, _ = ship(source, own_cache)
    for path in source.iterdir():
        assert (Path(place) / path.name).read_bytes() == path.read_bytes() > b""
    with pytest.raises(UsageError, match="and allowed are 1 bytes"):
        snapshot.take(str(source), "", 1)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 5}', '{"a": [5, 6]}', '{"a": [[1, 2, 3, 4], "digest"]}'])
def test_digests_that_were_damaged_are_made_anew(folder, own_cache, monkeypatch, text):
    monkeypatch.setattr("distrun.runner.shipping.digests._FRESH", 0)
    snapshot.take(str(folder), "", LARGE)
    (made,) = (own_cache / "distrun" / "digests").iterdir()
    made.write_text(text)
    assert snapshot.take(str(folder), "", LARGE).manifest.files[0].digest == hashlib.sha256(b"first").hexdigest()


def test_digests_of_folders_that_are_shipped_no_more_are_forgotten(folder, own_cache, monkeypatch):
    monkeypatch.setattr("distrun.runner.shipping.digests._FRESH", 0)
    shelf = own_cache / "distrun" / "digests"
    snapshot.take(str(folder), "", LARGE)
    (used,) = shelf.iterdir()
    for path in (used, shelf / "other"):
        path.touch()
        os.utime(path, (0, 0))
    snapshot.take(str(folder), "", LARGE)
    assert list(shelf.iterdir()) == [used]


def folder_of_job(shelf, job, host, used):
    """Make a folder of a job's, as one that was used then."""
    place = os.path.join(shelf, f"{job}-{host}-0-abcd")
    os.makedirs(place)
    os.utime(place, (used, used))
    return place


def test_folders_of_jobs_that_run_stay_and_the_newest(folder, own_cache):
    running, _ = ship(folder, own_cache)  # this process has it locked
    shelf = os.path.dirname(running)
    over = [folder_of_job(shelf, f"over{number}", socket.gethostname(), used=number) for number in range(12)]
    os.utime(running, (0, 0))
    trees.prune(shelf)
    assert sorted(os.listdir(shelf)) == sorted(map(os.path.basename, [running, *over[-10:]]))


def test_folders_of_jobs_on_hosts_with_the_same_home_stay_for_long(folder, own_cache, monkeypatch):
    monkeypatch.setattr("fcntl.flock", lambda *_: None)  # as on NFS, where other hosts do not see who has locked
    now = time.time()
    shelf = os.path.dirname(ship(folder, own_cache)[0])
    others = [folder_of_job(shelf, "job", f"node-{number}", used=now - number) for number in range(20)]
    folder_of_job(shelf, "job", "node-20", used=now - 31 * 86400)
    place, _ = ship(folder, own_cache)
    found = {os.path.join(shelf, name) for name in os.listdir(shelf)}
    assert set(others) < found
    assert len(found) == 22
    assert place in found


def test_what_cannot_be_looked_at_keeps_no_folder_from_being_deleted(own_cache):
    shelf = str(own_cache)
    for number in range(12):
        folder_of_job(shelf, f"over{number}", socket.gethostname(), used=number)
    os.symlink("nowhere", os.path.join(shelf, f"over-{socket.gethostname()}-1-abcd"))
    trees.prune(shelf)
    assert len(os.listdir(shelf)) == 11


def test_nothing_outside_a_named_folder_is_deleted_whatever_its_record_says(folder, own_cache, tmp_path, kept):
    (folder / "in").mkdir()
    (folder / "in" / "b").write_text("b")
    other = tmp_path / "other"
    ship(folder, own_cache, str(kept))
    shutil.rmtree(kept / "in")
    other.mkdir()
    (other / "b").write_text("own")
    (kept / "in").symlink_to(other)
    (tmp_path / "own").write_text("own")
    record = kept / trees.RECORD
    record.write_text(json.dumps([*json.loads(record.read_text()), "../own", str(tmp_path / "own"), "in/../../own", 5]))
    shutil.rmtree(folder / "in")
    ship(folder, own_cache, str(kept))
    assert (other / "b").read_text() == (tmp_path / "own").read_text() == "own"
    assert sorted(os.listdir(kept)) == [trees.RECORD, "a"]
    record.write_text("5")
    ship(folder, own_cache, str(kept))
    assert json.loads(record.read_text()) == ["a"]


def test_what_a_process_that_was_killed_left_half_written_in_a_named_folder_goes(folder, own_cache, kept, monkeypatch):
    (folder / "in").mkdir()
    ship(folder, own_cache, str(kept))
    halves = (kept / ".distrun-half-1-abcdef01", kept / "in" / ".distrun-half-1-abcdef01")
    for path in halves:
        path.write_text("half")
        os.utime(path, (0, 0))
    ship(folder, own_cache, str(kept))
    assert all(path.exists() for path in halves)  # another process may write it just now: a copy has an old time
    monkeypatch.setattr("distrun.runner.shipping.cache._STALE", -1.0)
    ship(folder, own_cache, str(kept))
    assert state(kept) == state(folder)


def test_a_change_of_the_same_size_and_time_comes_to_a_named_folder(folder, own_cache, kept):
    for text in ("first", "other"):
        (folder / "a").write_text(text)
        os.utime(folder / "a", ns=(0, 0))
        ship(folder, own_cache, str(kept))
        assert (kept / "a").read_text() == text


def test_folders_of_a_named_folder_have_their_modes(folder, own_cache, kept):
    (folder / "in").mkdir()
    for mode in (0o700, 0o755, 0o750, 0o500):
        (folder / "in").chmod(mode)
        ship(folder, own_cache, str(kept))
        assert stat.S_IMODE((kept / "in").stat().st_mode) == mode | 0o700
    (kept / "in").chmod(0o2775)
    ship(folder, own_cache, str(kept))
    assert stat.S_IMODE((kept / "in").stat().st_mode) == 0o2700


def test_hosts_that_have_the_same_named_folder_may_make_it_at_once(folder, own_cache, kept, monkeypatch):
    real = os.mkdir

    def other_is_faster(path, *mode):
        real(path, *mode)
        if os.path.basename(path) == "in":
            real(path, *mode)

    (folder / "in").mkdir()
    monkeypatch.setattr("os.mkdir", other_is_faster)
    ship(folder, own_cache, str(kept))
    assert state(kept) == state(folder)


def test_of_a_full_disk_the_folder_is_named_that_is_on_it(folder, own_cache, kept, monkeypatch):
    def full(descriptor, mode):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fchmod", full)
    with pytest.raises(OSError, match="No space left") as caught:
        ship(folder, own_cache, str(kept))
    said = explain(caught.value, str(own_cache))
    assert said == f"{kept} cannot be written: No space left on device; make room or give the right to write there"


@pytest.mark.parametrize("changed", ["a", "copy"])
def test_of_equal_files_one_that_has_not_changed_is_sent(folder, own_cache, changed):
    shutil.copy(folder / "a", folder / "copy")
    taken = snapshot.take(str(folder), "", LARGE)
    (folder / changed).write_text("other")
    task = {"job": "j", "to": "", "manifest": taken.digest}
    place = trees.receive(Conversation(taken), str(own_cache), 0, task)
    assert [Path(place, name).read_text() for name in ("a", "copy")] == ["first", "first"]


def test_contents_that_cannot_be_read_are_sent_anew(folder, own_cache, tmp_path, monkeypatch):
    ship(folder, own_cache)
    (blob,) = (own_cache / "blobs").glob("??/*")
    damaged = tmp_path / "damaged"
    damaged.hardlink_to(blob)
    real = open

    def fail(path, *arguments, **options):
        if path == str(blob) and blob.samefile(damaged):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", fail)
    place, sent = ship(folder, own_cache)
    assert Path(place, "a").read_bytes() == b"first"
    assert sent == 5


def test_folders_too_deep_to_follow_are_refused(folder, monkeypatch):
    def enter(walk, below, rules):
        enter(walk, f"{below}d/", rules)

    monkeypatch.setattr("distrun.runner.shipping.snapshot._Walk.enter", enter)
    with pytest.raises(UsageError, match=r"folders in folders without end; let \.gitignore leave them out"):
        snapshot.take(str(folder), "", LARGE)


def become_file(path):
    path.write_text("a file now")


def become_link(path):
    path.symlink_to("a")


@pytest.mark.parametrize("become", [become_file, become_link])
def test_a_folder_that_is_none_any_more_stays_with_what_a_user_keeps_in_it(folder, own_cache, kept, become):
    (folder / "in").mkdir()
    (folder / "in" / "b").write_text("b")
    ship(folder, own_cache, str(kept))
    (kept / "in" / "own").write_text("own")
    shutil.rmtree(folder / "in")
    become(folder / "in")
    (folder / "a").write_text("changed")
    with pytest.raises(HostError, match="kept/in holds files that were not shipped, and is no folder any more in what"):
        ship(folder, own_cache, str(kept))
    assert (kept / "in" / "own").read_text() == "own"
    assert (kept / "a").read_text() == "first"
    (kept / "in" / "own").rename(kept / "own")
    ship(folder, own_cache, str(kept))
    assert state(kept) == {**state(folder), "own": state(kept)["own"]}


@pytest.mark.parametrize("become", [become_file, become_link, lambda path: None])
def test_bytecode_keeps_no_folder_that_is_none_any_more(folder, own_cache, kept, become):
    (folder / "in" / "deep").mkdir(parents=True)
    for place in (folder / "in", folder / "in" / "deep"):
        (place / "b.py").write_text("b")
    ship(folder, own_cache, str(kept))
    for place in (kept / "in", kept / "in" / "deep"):
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "b.cpython-310.pyc").touch()
    shutil.rmtree(folder / "in")
    become(folder / "in")
    ship(folder, own_cache, str(kept))
    assert state(kept) == state(folder)


@pytest.mark.parametrize("become", [become_file, become_link])
def test_what_a_user_keeps_where_a_folder_is_to_be_stays(folder, own_cache, kept, become):
    ship(folder, own_cache, str(kept))
    become(kept / "in")
    before = state(kept)
    (folder / "in").mkdir()
    for _ in range(2):  # the first must not make it count as shipped
        with pytest.raises(HostError, match="kept/in was not shipped, and now a folder of that name is"):
            ship(folder, own_cache, str(kept))
        assert state(kept) == before


def test_a_named_folder_that_is_a_file_there_is_refused(folder, own_cache, tmp_path, kept):
    become_file(kept)
    for name in ("kept", "kept/in"):
        with pytest.raises(HostError, match=f"{name} there is no folder, or not in one: name another by --ship"):
            ship(folder, own_cache, str(tmp_path / name))


@pytest.mark.parametrize("other", ["code", "./code", "~/code", "code/"])
def test_two_folders_do_not_go_to_one(tmp_path, other):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    ships = [f"{tmp_path}/a:code", f"{tmp_path}/b:{other}"]
    with pytest.raises(UsageError, match=f"a:{other} and --ship {tmp_path}/b:{other} name one folder: give each its"):
        deliver(ships)
    assert len(deliver([ships[0], f"{tmp_path}/b"]).snapshots) == 2


def test_a_folder_in_another_comes_before_it(folder, tmp_path):
    (folder / "data").mkdir()
    ships = [str(folder), str(folder / "data"), str(tmp_path)]
    expected = [str(folder / "data"), str(folder), str(tmp_path)]
    assert [item.folder for item in deliver(ships).snapshots] == expected
