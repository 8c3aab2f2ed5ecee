"""Scripts for Horovod's elastic training run unchanged."""

from __future__ import annotations

import pytest

from distrun.contract import horovod

pytest.importorskip("torch")

HOROVOD = {"DISTRUN_HOROVOD": "1", "PYTHONPATH": str(horovod.FOLDER)}


def last_lines(supervisor):
    supervisor.finish()
    return [process.lines[-1] for process in supervisor.members]


def await_batches(process, count):
    process.await_output(lambda lines: lines.count("batch") >= count)


@pytest.mark.gate
def test_the_documented_script_goes_on_from_its_last_commit(supervise, tmp_path):
    supervisor = supervise("horovod_documented", 2, **HOROVOD)
    await_batches(supervisor.members[1], 20)
    supervisor.replace(0)
    await_batches(supervisor.members[1], 10)
    supervisor.replace(1, newcomers=0)
    (tmp_path / "end").touch()
    lines = last_lines(supervisor)
    assert lines[0].startswith("done 2 0.01 ")  # the learning rate of one rank


def test_the_documented_script_grows(supervise, tmp_path):
    supervisor = supervise("horovod_documented", 1, **HOROVOD)
    await_batches(supervisor.members[0], 10)
    supervisor.grow(1)
    (tmp_path / "end").touch()
    lines = last_lines(supervisor)
    assert lines[0].startswith("done 2 0.02 ")
    assert lines[0] == lines[1]


def test_a_sampler_gives_each_sample_once(supervise, tmp_path):
    supervisor = supervise("horovod_sampled", 2, **HOROVOD)
    await_batches(supervisor.members[0], 15)
    supervisor.replace(1)
    await_batches(supervisor.members[0], 75)
    supervisor.replace(0)
    (tmp_path / "end").touch()
    assert last_lines(supervisor) == ["used True"] * 2
