"""The kernel's counter of OOM kills is found under cgroup v2, v1 and in containers."""

import pytest

from distrun.runner.system.oom import OomCounter


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("0::/user.slice/session-1.scope\n", "user.slice/session-1.scope/memory.events"),
        ("0::/on/the/host\n", "memory.events"),
        ("8:pids:/\n4:memory:/docker/98\n0::/\n", "memory/docker/98/memory.oom_control"),
        ("4:cpu,memory:/docker/98\n", "memory/memory.oom_control"),
    ],
)
def test_a_rising_counter_is_reported_once(tmp_path, groups, counter):
    (tmp_path / "cgroup").write_text(groups)
    file = tmp_path / "mount" / counter
    file.parent.mkdir(parents=True)
    file.write_text("oom 5\noom_kill 3\noom_group_kill 0\n")
    oom = OomCounter(str(tmp_path / "cgroup"), str(tmp_path / "mount"))
    assert not oom.has_risen()
    file.write_text("oom 6\noom_kill 4\noom_group_kill 0\n")
    assert oom.has_risen()
    assert not oom.has_risen()


def test_without_control_groups_nothing_is_claimed(tmp_path):
    assert not OomCounter(str(tmp_path / "none"), str(tmp_path)).has_risen()
