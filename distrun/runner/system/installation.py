"""The installation of distrun on this machine: its origin, so that other hosts can get the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from distrun import __version__

_NAME = "distrun"
_PACKAGE = Path(__file__).resolve().parents[2]


def install_command(python: str) -> str:
    """Return the command that installs this distrun for a Python on another host, and a note about files to copy first.

    The name and the version alone would not be enough: a package index may have another package with that name.
    """
    what, remark = requirement(_direct_url(), _PACKAGE.parent)
    return f"'{python} -m pip install {what}'{remark}"


def requirement(origin: dict[str, Any], checkout: Path) -> tuple[str, str]:
    """Return the requirement for pip, and a remark for the user, which may be empty.

    Args:
        origin: the contents of pip's direct_url.json. Empty = it has none.
        checkout: the directory that holds the package.
    """
    # {"url": "file:///root/distrun-0.1.0-py3-none-any.whl", "archive_info": {"hash": "sha256=..."}} {"url":
    # "file:///root/distrun", "dir_info": {"editable": true}} {"url": "https://example.org/distrun.git", "vcs_info":
    # {"vcs": "git", "commit_id": "6bc4388...", ...}} Nothing: installed from an index, or not installed but found on
    # PYTHONPATH
    url = urlsplit(str(origin.get("url", "")))
    if vcs := origin.get("vcs_info"):
        return f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}", ""
    if url.scheme == "file":
        path = unquote(url.path)
        kind = "a copy of this machine's"
        return (Path(path).name, f" with {kind} {path}") if "archive_info" in origin else (path, f", {kind}")
    if url.scheme:
        return str(origin["url"]), ""
    if (checkout / "pyproject.toml").exists():
        return str(checkout), ", a copy of this machine's"
    return "WHEEL", f", with the wheel of distrun {__version__} that was installed here"


def _direct_url() -> dict[str, Any]:
    """Return the contents of pip's direct_url.json, which describes an origin other than an index, or {}."""
    from importlib import metadata  # slow, and only needed for remedies

    try:
        text = metadata.distribution(_NAME).read_text("direct_url.json")
        found = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
