"""Lists of hosts with number ranges, in Slurm's notation: node[01-04,07] is five hosts. Pure."""

from __future__ import annotations

import itertools
import re

from distrun.errors import UsageError

_MAX_HOSTS = 1 << 16  # so that a typo does not fill the memory
# gpu[01-04,07]-[0-1]x: names with lists of numbers in brackets
_ELEMENT = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str, remedy: str = "correct it") -> list[str]:
    """Return the names in the list `text`: n1, n2, n07, gpu1-0, gpu1-1, ... for `n[1-2,07],gpu[1-2]-[0-1]`.

    Args:
        text: the list.
        remedy: the remedy for the error message.

    Raises:
        UsageError: the text is not such a list.
    """
    elements = _ELEMENT.findall(text)
    if not elements or ",".join(elements) != text:
        raise _bad_list(text, remedy)
    names: list[str] = []
    for element in elements:
        choices = [
            [literal] if literal else _numbers(numbers, text, remedy)
            for literal, numbers in _PART.findall(element.strip())
        ]
        names += itertools.islice(map("".join, itertools.product(*choices)), _MAX_HOSTS + 1 - len(names))
        if len(names) > _MAX_HOSTS:
            raise UsageError(f"the host list {text!r} has more than {_MAX_HOSTS} hosts: give a shorter one with -H")
    return names


def _numbers(text: str, whole: str, remedy: str) -> list[str]:
    """Return the numbers in brackets, such as `01-04,07`, as text. Leading zeros set the width."""
    numbers: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last:
            raise _bad_list(whole, remedy)
        width = len(match[1]) if match and match[1].startswith("0") else 0
        last = min(last, first + _MAX_HOSTS)
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers


def _bad_list(text: str, remedy: str) -> UsageError:
    return UsageError(f"{text!r} is not a host list like node[01-04,07],login1: {remedy}")
