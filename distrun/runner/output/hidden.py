"""The ranks and streams that are not shown, from the options that select ranks by local rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distrun.errors import UsageError

_STREAMS = {"0": (), "1": ("stdout",), "2": ("stderr",), "3": ("stdout", "stderr")}


def hidden_streams(
    local_ranks: Mapping[int, int], redirect: str | None, shown: str | None
) -> frozenset[tuple[int, str]]:
    """Return the ranks and streams that are not shown.

    Args:
        local_ranks: the local rank of each rank.
        redirect: the streams that go to files only: 1 for stdout, 2 for stderr, 3 for both, either for all ranks or by
            local rank, as in `0:3,1:2`. None = no stream.
        shown: the local ranks that are shown, as in `0,2`. None = all.

    Raises:
        UsageError: one of the texts is not valid.
    """
    redirected = _redirected(redirect or "0")
    kept = None if shown is None else _numbers(shown)
    hidden = set()
    for rank, local in local_ranks.items():
        streams = redirected.get(local, redirected.get(None, ()))
        hidden |= {(rank, stream) for stream in (streams if kept is None or local in kept else _STREAMS["3"])}
    return frozenset(hidden)


def _redirected(text: str) -> dict[int | None, tuple[str, ...]]:
    """Return the streams by local rank, where the key None stands for all ranks."""
    if text in _STREAMS:
        return {None: _STREAMS[text]}
    entries = [re.fullmatch(r"(\d+):([0-3])", entry.strip(), re.ASCII) for entry in text.split(",")]
    if not all(entries):
        raise UsageError(
            f"--redirect {text!r} names no streams: allowed are 1 (stdout), 2 (stderr) and 3 (both), for all ranks or "
            "by local ranks as in 0:3,1:2"
        )
    return {int(entry[1]): _STREAMS[entry[2]] for entry in entries if entry is not None}


def _numbers(text: str) -> set[int]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        raise UsageError(f"--local-rank-filter {text!r} is no list of local ranks: give numbers, as in 0,2")
    return set(map(int, entries))
