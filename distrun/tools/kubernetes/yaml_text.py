"""YAML of plain data, in the style of Kubernetes' documentation: short lists of plain values on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z_/][\w./ -]*[\w./]|[A-Za-z_/]", re.ASCII)  # is a string in YAML, whatever the version
_BLOCK = re.compile(r"[!-~](?:[ -~]*[!-~])?\n(?:\n*[ -~]*[!-~]\n)*", re.ASCII)  # lines, each with its end
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"}


def yaml_text(documents: list[dict[str, Any]]) -> str:
    """Return documents as YAML."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: dict[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        if _is_short(item):
            yield f"{_scalar(name)}: {_flow(item)}"
        elif isinstance(item, str):
            yield from _block(f"{_scalar(name)}: ", item)
        elif isinstance(item, dict):
            yield f"{_scalar(name)}:"
            yield from (f"  {line}" for line in _lines(item))
        else:
            yield f"{_scalar(name)}:"
            yield from _items(item)


def _items(values: list[Any]) -> Iterator[str]:
    for value in values:
        if _is_block(value):
            yield from _block("- ", value)
            continue
        if not isinstance(value, dict) or _is_short(value):
            yield f"- {_flow(value)}"
            continue
        for number, line in enumerate(_lines(value)):
            yield f"{'  ' if number else '- '}{line}"


def _block(before: str, text: str) -> Iterator[str]:
    """Yield a text of several lines as it is."""
    yield f"{before}|"
    yield from (f"  {line}".rstrip() for line in text.splitlines())


def _is_block(value: Any) -> bool:
    return isinstance(value, str) and _BLOCK.fullmatch(value) is not None


def _is_short(value: Any) -> bool:
    """Whether a value stands on one line: a plain one, or a collection of few of them."""
    if isinstance(value, dict):
        # Nothing but what belongs together: {name: tmp, emptyDir: {}}
        return len(value) < 4 and all(map(_is_leaf, value.values())) and len(_flow(value)) < _WIDTH
    if _is_block(value):
        return False
    return not isinstance(value, list) or (all(map(_is_leaf, value)) and len(_flow(value)) < _WIDTH)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) < 3 and not any(isinstance(item, (dict, list)) and item for item in value.values())
    if isinstance(value, list):
        return all(not isinstance(item, (dict, list)) for item in value)
    return not _is_block(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_scalar(name)}: {_flow(item)}" for name, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Return a plain value; JSON writes strings as YAML reads them."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
