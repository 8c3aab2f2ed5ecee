"""The report of the first failure: which rank failed, where and how, and the last lines of its stderr."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distrun.host.limits import reached_by
from distrun.host.ranks import list_ranks
from distrun.runner.decisions.failure import Failure
from distrun.tracing.activity import ActivityDescription

LAST_LINES = 20
_MAX_LINE = 2000  # bytes: only the end of a longer line is reported
_MOST_ACTIVITIES = 8  # lines: the rarest activities are the most informative ones
_KEPT = 1 << 15  # bytes kept per rank: a bound on memory, and enough for `LAST_LINES` ordinary lines
# What Open MPI's mpirun says when a host is gone. Its exit status is 0 then, so there is no other sign of it.
_LOST_HOST = (
    b"PRTE has lost communication with a remote daemon.",
    b"ORTE has lost communication with a remote daemon.",
)
_NO_MODULE = re.compile(rb"ModuleNotFoundError: No module named '([\w.]+)'")
_NO_GPU = b"invalid device ordinal"  # in the errors of torch, cupy and TensorFlow
_LOST_PEER = b"distrun.errors.JobAbortedError"  # how Python ends the traceback of a rank that lost its peers


class StderrTails:
    """The last bytes that each rank wrote to stderr. Agents' threads record them, and the decider reads them."""

    def __init__(self) -> None:
        self._kept: dict[int, bytearray] = {}

    def record(self, rank: int, data: bytes) -> None:
        """Note what a rank wrote to stderr."""
        kept = self._kept.setdefault(rank, bytearray())
        kept += data[-_KEPT:]
        if len(kept) > 2 * _KEPT:
            del kept[:-_KEPT]

    def lines(self, rank: int) -> list[bytes]:
        """Return the last lines, without line ends. For a redrawn progress bar that is what was visible last."""
        lines = bytes(self._kept.get(rank, b"")).replace(b"\r\n", b"\n").split(b"\n")
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2][-_MAX_LINE:] for line in lines]
        while shown and not shown[-1].strip():
            shown.pop()
        return shown[-LAST_LINES:]

    def forget(self, rank: int) -> None:
        """Forget what a rank wrote."""
        self._kept.pop(rank, None)

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether the rank says that it ended because it lost a peer."""
        return any(line.startswith(_LOST_PEER) for line in self.lines(rank))

    def reports_lost_host(self, rank: int) -> bool:
        """Whether the rank is an mpirun that says that it has lost a host."""
        return any(line.startswith(_LOST_HOST) for line in self.lines(rank))


def format_report(
    failure: Failure, name: str, pids: Mapping[int, int], words: list[bytes], log: str | None = None
) -> str:
    """Return the report as text to print. Bytes that are not UTF-8 become surrogates and are printed as they were.

    Args:
        failure: the first failure.
        name: what to call the rank that failed, such as `rank 3 on alpha`.
        pids: rank -> process id.
        words: its last lines on stderr.
        log: the file that has all of its stderr.
    """
    if failure.rank is None:
        return f"distrun: {failure.what}"
    pid = f" (pid {pids[failure.rank]})" if failure.rank in pids else ""
    report = [f"distrun: {name}{pid} {failure.what}"]
    if failure.rank in pids:
        place = f" (all of it: {log})" if log else ""
        report.append(f"distrun: its last lines on stderr{place}:" if words else "distrun: it wrote nothing to stderr")
        report += ["    " + word.decode(errors="surrogateescape") for word in words]
    return "\n".join(report)


def missing_module_remedy(tails: StderrTails, rank: int, host: str) -> list[str]:
    """Return a line that says how `host` gets the module that `rank` did not find there, no line if it found all."""
    module = _missing_module(tails, rank)
    if module in ("", "horovod"):
        return []
    return [
        f"distrun: {host} has no module {module!r}: install it there, or give --bootstrap={module}; a module of your "
        "own comes with --ship"
    ]


def missing_horovod_remedy(tails: StderrTails, rank: int) -> list[str]:
    """Return a line that says how scripts of Horovod run, no line if `rank` did not miss Horovod."""
    if _missing_module(tails, rank) != "horovod":
        return []
    return ["distrun: distrun runs scripts of Horovod unchanged, without it: give --horovod, or set DISTRUN_HOROVOD=1"]


def _missing_module(tails: StderrTails, rank: int) -> str:
    """Return the top-level module that a rank that has just ended did not find, or "" if it found all."""
    found = _NO_MODULE.match(b"".join(tails.lines(rank)[-1:]))
    return "" if found is None else found[1].decode().partition(".")[0]


def gpu_number_remedy(tails: StderrTails, rank: int) -> list[str]:
    """Return a line that says why the rank has no GPU of the number that it asked for, no line if it asked for none."""
    if not any(_NO_GPU in line for line in tails.lines(rank)):
        return []
    return [
        "distrun: it asked for a GPU of a number that it does not have: local_rank() is no device number where ranks "
        "share GPUs (--share-gpus), or CUDA_VISIBLE_DEVICES shows fewer GPUs than this host has ranks; use the GPU "
        "that init() has bound, torch.cuda.current_device() or distrun.device().index, or start fewer ranks per host"
    ]


def limit_remedy(tails: StderrTails, failure: Failure) -> list[str]:
    """Return a line about the limit that a rank of this machine has reached, no line if it has reached none."""
    if failure.rank is None or failure.exit is None:
        return []
    words = b"\n".join(tails.lines(failure.rank)[-1:]).decode(errors="replace")
    limit = reached_by(failure.exit.returncode, words)
    return [] if limit is None else [f"distrun: {limit}"]


def format_activities(activities: Mapping[int, ActivityDescription]) -> list[str]:
    """Return a line for each activity of ranks when the first one failed, the rarest activities first."""
    groups: dict[tuple[str, int], list[int]] = {}
    for rank, activity in sorted(activities.items()):
        groups.setdefault((activity.what, activity.step), []).append(rank)
    lines = []
    for ranks in sorted(groups.values(), key=len)[:_MOST_ACTIVITIES]:
        longest = max((activities[rank] for rank in ranks), key=lambda activity: activity.seconds)
        lines.append(f"distrun: {list_ranks(ranks)} {longest.sentence}")
    if len(groups) > _MOST_ACTIVITIES:
        lines.append(f"distrun: {len(groups) - _MOST_ACTIVITIES} more activities of ranks are left out")
    return lines
