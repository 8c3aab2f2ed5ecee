"""Copies of what servers hold: what is read is what was written last, by a process before, and nothing is left."""

import numpy as np
import pytest

from distrun.errors import BootstrapError
from distrun.methods.servers.clocks import LEFT
from distrun.methods.servers.copies import Copies, Copy


def copy_of(version, clocks=(1, 2), seed=0):
    arrays = np.random.default_rng(seed).standard_normal((2, 5)).astype(np.float32)
    return Copy(b'{"a": 1}', version, list(clocks), np.array([3, 4]), arrays)


def assert_same(one, other):
    assert (one.description, one.version, list(one.clocks)) == (other.description, other.version, list(other.clocks))
    np.testing.assert_array_equal(one.steps, other.steps)
    np.testing.assert_array_equal(one.arrays, other.arrays)


def test_the_next_generation_reads_the_last_copy_of_each_optimizer(tmp_path):
    first = Copies(tmp_path / "job", 1, 0)
    for version in range(3):
        first.save(0, copy_of(version, seed=version))
    first.save(7, copy_of(9))
    Copies(tmp_path / "job", 0, 0).save(0, copy_of(100))  # another server
    found = Copies(tmp_path / "job", 1, 2).newest()
    assert sorted(found) == [0, 7]
    assert_same(found[0][0], copy_of(2, seed=2))
    assert 0 <= found[7][1] < 60


def test_a_server_that_was_given_up_does_no_harm(tmp_path):
    before, after = Copies(tmp_path / "job", 1, 0), Copies(tmp_path / "job", 1, 1)
    before.save(0, copy_of(1))
    after.save(0, copy_of(2))
    before.save(0, copy_of(3))  # it is still there, behind a network that was cut
    before.remove()
    assert_same(Copies(tmp_path / "job", 1, 2).newest()[0][0], copy_of(2))


def test_workers_that_have_left_since_the_copy_are_known(tmp_path):
    copies = Copies(tmp_path / "job", 1, 0)
    copies.save(0, copy_of(1, clocks=(4, 5, 6)))
    copies.save_left(0, [1])
    copies.save_left(0, [1, 2])
    assert Copies(tmp_path / "job", 1, 1).newest()[0][0].clocks == [4, LEFT, LEFT]


def test_the_last_server_to_end_removes_the_folder_of_the_job(tmp_path):
    one, other, again = (Copies(tmp_path / "job", *place) for place in ((0, 0), (1, 0), (1, 2)))
    one.save(0, copy_of(1))
    other.save(0, copy_of(1))
    other.save_left(0, [0])
    again.save(0, copy_of(2))
    one.remove()
    assert (tmp_path / "job").exists()
    again.remove()
    assert list(tmp_path.iterdir()) == []
    again.save(0, copy_of(3))  # the thread that makes copies may come late
    assert list(tmp_path.iterdir()) == []


def test_what_has_not_changed_is_not_written_again(tmp_path):
    copies = Copies(tmp_path / "job", 0, 0)
    assert not copies.is_newest(0, 1, [1, 2])
    copies.save(0, copy_of(1))
    assert copies.is_newest(0, 1, [1, 2])
    assert not copies.is_newest(0, 1, [1, 3])


@pytest.mark.parametrize("place", [0, 30, 60, -1])
def test_a_damaged_copy_is_refused(tmp_path, place):
    Copies(tmp_path / "job", 0, 0).save(0, copy_of(1))
    (path,) = (tmp_path / "job").iterdir()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(BootstrapError, match="is damaged"):
        Copies(tmp_path / "job", 0, 1).newest()


def test_a_folder_that_cannot_be_written_to_is_refused_with_what_is_needed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BootstrapError, match="needs a folder that all hosts see"):
        Copies(tmp_path / "file" / "job", 0, 0)


def test_that_no_copy_can_be_made_is_told_once(tmp_path, capfd):
    copies = Copies(tmp_path / "job", 3, 0)
    (tmp_path / "job").rmdir()
    copies.save(0, copy_of(1))
    copies.save(0, copy_of(2))
    assert capfd.readouterr().err.count("distrun: no copy of server 3 was made: ") == 1
