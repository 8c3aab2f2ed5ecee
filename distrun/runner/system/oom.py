"""The kernel's count of processes that the OOM killer has ended: `oom_kill` of this process's control group."""

from __future__ import annotations

from pathlib import Path


class OomCounter:
    """Detects that the OOM killer has ended a process of this control group."""

    def __init__(self, cgroup: str = "/proc/self/cgroup", mount: str = "/sys/fs/cgroup") -> None:
        self._file = _counter_file(Path(cgroup), Path(mount))
        self._seen = self._read()

    def has_risen(self) -> bool:
        """Whether the counter has risen since the last call."""
        now = self._read()
        risen = now > self._seen
        self._seen = now
        return risen

    def _read(self) -> int:
        if self._file is None:
            return 0
        # A line such as "oom_kill 3". memory.events has other lines, too ("oom 5", "oom_group_kill 0").
        try:
            lines = self._file.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _counter_file(cgroup: Path, mount: Path) -> Path | None:
    """Return the file with the counter of the innermost visible control group, or None.

    /proc/self/cgroup has lines such as "0::/user.slice/session-1.scope" (v2) and "4:memory:/docker/982816bd" (v1). In a
    container the path may be the host's, while the container's own group is mounted. So the root of the mount is tried
    second.
    """
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return None
    candidates = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base, name = mount / "memory", "memory.oom_control"
        elif not controllers:
            base, name = mount, "memory.events"
        else:
            continue
        candidates += [base / path.lstrip("/") / name, base / name]
    return next((file for file in [*candidates, Path("/proc/vmstat")] if file.is_file()), None)
