"""The first failure's story: who failed, where, how, and its last words."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.runner.supervision.policy import Failure

LAST_LINES = 20
_LONGEST_LINE = 2000  # bytes; of a longer line the end is told
_KEPT = 1 << 15  # bytes kept per rank: a bound on memory, and enough for `LAST_LINES` ordinary lines
_WITNESS = b"distrun.errors.JobAbortedError"  # how Python ends the traceback of a rank that lost its peers


class StderrTails:
    """The last bytes each rank wrote to stderr. An agent's thread records; the decider reads after the rank's end."""

    def __init__(self) -> None:
        self._kept: dict[int, bytearray] = {}

    def record(self, rank: int, data: bytes) -> None:
        """A rank wrote this to stderr."""
        kept = self._kept.setdefault(rank, bytearray())
        kept += data[-_KEPT:]
        if len(kept) > 2 * _KEPT:
            del kept[:-_KEPT]

    def lines(self, rank: int) -> list[bytes]:
        """The last lines, without their ends; of a progress bar's redrawn line, what was last to be seen."""
        lines = bytes(self._kept.get(rank, b"")).replace(b"\r\n", b"\n").split(b"\n")
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2][-_LONGEST_LINE:] for line in lines]
        while shown and not shown[-1].strip():
            shown.pop()
        return shown[-LAST_LINES:]

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether the rank says that it ended because a peer was gone."""
        return any(line.startswith(_WITNESS) for line in self.lines(rank))


def tell(
    failure: Failure, names: Mapping[int, str], pids: Mapping[int, int], words: list[bytes], log: str | None = None
) -> str:
    """The story as text to print; bytes that are not UTF-8 become surrogates, to be printed as they were.

    Args:
        failure: the first failure.
        names: rank -> what to call it, such as `rank 3 on alpha`.
        pids: rank -> process id.
        words: the failed rank's last lines on stderr.
        log: the file that has all of its stderr.
    """
    if failure.rank is None:
        return f"distrun: {failure.what}"
    pid = f" (pid {pids[failure.rank]})" if failure.rank in pids else ""
    failure_report = [f"distrun: {names[failure.rank]}{pid} {failure.what}"]
    if failure.rank in pids:
        place = f" (all of it: {log})" if log else ""
        failure_report.append(
            f"distrun: its last lines on stderr{place}:" if words else "distrun: it wrote nothing to stderr"
        )
        failure_report += ["    " + word.decode(errors="surrogateescape") for word in words]
    return "\n".join(failure_report)
