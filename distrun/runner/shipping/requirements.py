"""Parsing the requirements of the ranks' environment from the value of `--bootstrap`."""

from __future__ import annotations

import os
import re

from distrun.errors import UsageError

RANK_NEEDS = ("numpy>=1.24", "psutil>=5.9", "cloudpickle>=3.0")
"""The packages that distrun itself needs in a rank, as in pyproject.toml."""

_NESTED = re.compile(r"(?:-r|--requirement)(?:\s*=\s*|\s+)(.+)|-r(\S.*)")
# Lines that refer to a path on this machine.
_REFUSED = re.compile(r"-e\b|--editable\b|\.{0,2}/|file:|(-c|--constraint|-f|--find-links)\b(?!\s*=?\s*https?://)")


def requirements(value: str) -> tuple[str, ...]:
    """Return the requirements as the lines of a requirements file for hosts.

    Args:
        value: a requirements file, or requirements separated by commas or spaces. Empty = only distrun's own.

    Raises:
        UsageError: the file cannot be read, or refers to files of this machine.
    """
    if os.path.exists(value) and not os.path.isdir(value):
        given = _from_file(os.path.normpath(value), ())
    elif value.endswith(".txt"):
        raise UsageError(f"--bootstrap={value}: there is no such file: give a requirements file, or requirements")
    else:
        given = [item for item in _split(value) if item]
        for item in given:
            _check(item, value)
    # If one requirement has a hash, pip wants a hash for all: then the file must have distrun's own requirements, too.
    needs = () if any("--hash" in line for line in given) else RANK_NEEDS
    return tuple(dict.fromkeys((*given, *needs)))


def _split(value: str) -> list[str]:
    """Return the requirements in a list.

    The commas in `numpy>=1.24,<3` and `ray[data,tune]` do not separate, and neither do the spaces in `numpy >= 1.24`,
    around the `@` of `name @ URL` and after the semicolon in front of a marker, which a comma ends.
    """
    first, *others = re.split(r"([\s,]+)(?![^\[]*\])", value.strip())
    found = [first]
    for between, part in zip(others[::2], others[1::2], strict=True):
        before = found[-1]
        if "," not in between and (";" in before or part[:1] in (";", "@") or before.endswith("@")):
            found[-1] += f" {part}"
        elif before[-1:] in ("<", ">", "=", "~") or (re.match(r"[<>=!~]", part) and not re.search(r"[<>=!~]", before)):
            found[-1] += part
        elif re.match(r"[<>=!~]", part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _check(item: str, value: str) -> None:
    """Refuse an entry of a list that is not a requirement from a package index."""
    if item.startswith("-"):
        raise UsageError(f"--bootstrap={value}: {item!r} is an option of pip: write it into a requirements file")
    if _REFUSED.match(item) or item in (".", "..") or ("/" in item and "://" not in item):
        raise UsageError(
            f"--bootstrap={value}: there is no such file {item!r}, or not on other hosts: give a requirements file, or "
            "packages of their index, and bring code by --ship"
        )


def _from_file(path: str, outer: tuple[str, ...]) -> list[str]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--bootstrap={path} cannot be read: {reason}; give a requirements file") from None
    found: list[str] = []
    for line in re.sub(r"\\\n", "", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        nested = _NESTED.fullmatch(line)
        if nested is not None:
            inner = os.path.normpath(os.path.join(os.path.dirname(path), (nested[1] or nested[2]).strip()))
            if inner in (*outer, path):
                raise UsageError(f"--bootstrap={path}: {inner} requires itself: leave one of the lines out")
            found += _from_file(inner, (*outer, path))
        elif _REFUSED.match(line):
            raise UsageError(
                f"--bootstrap={path}: {line!r} speaks of this machine's files, which other hosts do not have: name "
                "packages of their index, and bring code by --ship"
            )
        elif line:
            found.append(line)
    return found
