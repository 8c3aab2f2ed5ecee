"""YAML of plain data, in the style of Kubernetes' documentation: short values are on one line.

PyYAML writes "1e-3", "08" and "y" without quotes, but the cluster reads other versions of YAML, which have numbers and
truth values there. So everything except plain words is quoted here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_WIDTH = 92
_PLAIN = re.compile(r"[A-Za-z_/][\w./ -]*[\w./]|[A-Za-z_/]", re.ASCII)  # a string in all versions of YAML
_BLOCK = re.compile(r"[!-~](?:[ -~]*[!-~])?\n(?:\n*[ -~]*[!-~]\n)*", re.ASCII)  # lines, each with its end
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # JSON keeps them, but YAML must not contain them
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"}


def yaml_text(documents: list[dict[str, Any]]) -> str:
    """Return documents as YAML."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(document)) for document in documents)


def _lines(value: dict[str, Any] | list[Any]) -> Iterator[str]:
    """Yield the lines of a collection."""
    named = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for name, item in named:
        before, text = "-" if name is None else f"{_scalar(name)}:", _flow(item)
        if isinstance(item, str) and _BLOCK.fullmatch(item):
            yield f"{before} |"
            yield from (f"  {line}".rstrip() for line in item.splitlines())
        elif not isinstance(item, dict | list) or (len(text) < _WIDTH and "\\n" not in text):
            yield f"{before} {text}"
        else:
            first, *rest = _lines(item)
            if name is None:
                yield f"- {first}"
            else:
                yield before
                yield f"  {first}"
            yield from (f"  {line}" for line in rest)


def _flow(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_scalar(name)}: {_flow(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Return a scalar. JSON writes strings as YAML reads them, except for a few characters."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
