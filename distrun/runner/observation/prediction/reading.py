"""Finding a job's profile in a file: a timeline, a report, or the profile alone."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from typing import IO, cast

from distrun.errors import UsageError
from distrun.runner.observation.prediction.profile import FORMAT, MISSING, JobProfile

KEY = "distrunProfile"
"""The member of a trace that holds the profile."""
ELEMENT = "distrun-profile"
"""The id of a report's script element that holds the profile."""
_CHUNK = 1 << 20
_LARGEST = 16 << 20  # characters of a profile: about 100 per batch of gradients
_MEMBER = re.compile(rf'"{KEY}"\s*:\s*')
_SCRIPT = re.compile(rf'<script\b[^>]*\bid="{ELEMENT}"[^>]*>')
_OVERLAP = 256  # characters that the start of either fits into


def read(path: str) -> JobProfile:
    """Return the profile in a file. A large timeline is read piece by piece.

    Args:
        path: a timeline (JSON, also compressed by gzip), a report (HTML), or a profile (JSON).

    Raises:
        UsageError: the file cannot be read, or holds no valid profile.
    """
    try:
        with _opened(path) as file:
            found = _found(file, path)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}: give a timeline, a report or a profile of a job") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be read ({reason}): give a timeline, a report or a profile of a job") from None
    if isinstance(found, dict) and isinstance(why := found.get(MISSING), str):
        raise UsageError(f"the job of {path} left no profile to predict from: {why}")
    return JobProfile.from_json(found, os.path.basename(path))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    with open(path, "rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with io.TextIOWrapper(gzip.open(file) if is_compressed else file, encoding="utf-8") as text:
            yield text


def _found(file: IO[str], path: str) -> object:
    """Return the JSON object of the profile."""
    head = file.read(_CHUNK)
    is_page = head.lstrip("\ufeff \t\r\n").startswith("<")
    text = _after(_SCRIPT if is_page else _MEMBER, head, file)
    if text is None and not is_page and len(head) < _CHUNK:
        text = head  # it can only be a profile alone
    if text is None:
        raise _none_in(path)
    try:
        found, _ = json.JSONDecoder().raw_decode(text.lstrip("\ufeff \t\r\n"))
    except ValueError:
        raise _none_in(path) from None
    if text is head and not (isinstance(found, dict) and "format" in found):
        raise _none_in(path)
    return cast(object, found)


def _after(begin: re.Pattern[str], text: str, file: IO[str]) -> str | None:
    """Return the text after the first match of `begin`, at most as long as a profile, or None without a match."""
    while not (match := begin.search(text)):
        if not (more := file.read(_CHUNK)):
            return None
        text = text[-_OVERLAP:] + more  # with the end of the previous piece, so that no match is cut in two
    rest = text[match.end() :]
    return rest + file.read(_LARGEST - len(rest))


def _none_in(path: str) -> UsageError:
    return UsageError(
        f"{path} holds no profile of a job: give a timeline that has the member {KEY!r}, which distrun writes at the "
        f"end of a job unless it is killed, a report that has the element {ELEMENT!r}, or a profile alone, a JSON "
        f"object that has 'format': {FORMAT}"
    )
