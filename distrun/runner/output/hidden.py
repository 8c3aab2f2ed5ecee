"""Which ranks and streams are not shown, from the options that name ranks by their place on their host. Pure."""

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
        local_ranks: rank -> local rank.
        redirect: the streams that go to files only: 1 stdout, 2 stderr, 3 both, of all ranks; `0:3,1:2`: of local
            ranks 0 and 1. None = none.
        shown: the local ranks that are shown, `0,2`. None = all.

    Raises:
        UsageError: one of the texts is something else.
    """
    redirected = _redirected(redirect or "0")
    kept = None if shown is None else _numbers(shown)
    hidden = set()
    for rank, local in local_ranks.items():
        streams = redirected.get(local, redirected.get(None, ()))
        hidden |= {(rank, stream) for stream in (streams if kept is None or local in kept else _STREAMS["3"])}
    return frozenset(hidden)


def _redirected(text: str) -> dict[int | None, tuple[str, ...]]:
    """Return the streams by local rank; None stands for all."""
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
