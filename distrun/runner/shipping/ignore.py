"""The rules of .gitignore: which files of a folder git ignores. Git is run only to find the user's own rules.

The rules follow gitignore(5): a later rule overrides an earlier one, a rule of an inner folder overrides one of an
outer folder, and an ignored folder is not entered, whatever rules match its files.

The library pathspec is not used: it differs from git if a rule re-includes a folder, in 1 of 300 random cases of the
test that compares the two.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import string
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE = ".gitignore"

_ALWAYS = frozenset({".git", ".hg", ".svn", "__pycache__"})
"""Names that are never shipped: histories, and bytecode, which Python makes again."""


@dataclass(frozen=True)
class IgnoreRule:
    """One line of a .gitignore."""

    pattern: re.Pattern[str]
    """Matches paths below the folder that the file is in."""
    ignores: bool
    """Whether it ignores its matches. False for a line with `!`, which re-includes them."""
    only_folders: bool


@dataclass(frozen=True)
class Rules:
    """The rules that apply in a folder, the strongest last."""

    layers: tuple[tuple[str, tuple[IgnoreRule, ...]], ...] = ()
    """Pairs of a folder, relative to the root of all paths, and the rules of its file."""

    def within(self, folder: str, text: str | None) -> Rules:
        """Return the rules that apply in a folder whose .gitignore has the text `text`, as from `read` (None = none).

        Its path is relative to the root of all paths: empty for the root, otherwise with a `/` at its end.
        """
        rules = parse(text or "")
        return Rules((*self.layers, (_bytewise(folder), rules))) if rules else self

    def ignore(self, path: str, is_folder: bool) -> bool:
        """Whether a path is ignored, provided that the folders above it are not."""
        if path.rpartition("/")[2] in _ALWAYS:
            return True
        whole = _bytewise(path)
        for folder, rules in reversed(self.layers):
            below = whole.removeprefix(folder)
            for rule in reversed(rules):
                if (is_folder or not rule.only_folders) and rule.pattern.fullmatch(below):
                    return rule.ignores
        return False


def rules_around(folder: str, environ: Mapping[str, str]) -> tuple[Rules, str]:
    """Return the rules from outside of a folder, and the folder's path relative to the root that the rules' paths have.

    They are the user's own rules (`core.excludesFile`), the rules of the folder's repository (`.git/info/exclude`), and
    the rules of the folders between the top of the repository and this one. The root is the top of the repository, or
    the folder itself outside of any.

    Args:
        folder: the absolute path of the folder.
        environ: the environment, for the place of the user's own rules.
    """
    top = _repository(folder)
    rules = Rules().within("", _text(os.path.join(top or folder, _own_rules(folder, environ))))
    if top is None:
        return rules, ""
    rules = rules.within("", exclude(top))
    prefix = ""
    relative = os.path.relpath(folder, top)
    for part in () if relative == "." else relative.split("/"):
        rules = rules.within(prefix, _text(os.path.join(top, prefix, FILE)))
        prefix += f"{part}/"
    return rules, prefix


def _own_rules(folder: str, environ: Mapping[str, str]) -> str:
    """Return the file of the user's own rules: as configured, if git is installed, or else git's default."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", folder, "config", "--path", "core.excludesFile"]
        return os.fsdecode(subprocess.check_output(command, env=environ, stderr=subprocess.DEVNULL)).removesuffix("\n")
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "git", "ignore")


def _repository(folder: str) -> str | None:
    for place in (folder, *map(str, Path(folder).parents)):
        if os.path.exists(os.path.join(place, ".git")):
            return place
    return None


def exclude(top: str) -> str | None:
    """Return the text of a repository's `info/exclude`, which all its worktrees share, or None without one."""
    place = os.path.join(top, ".git")
    with suppress(OSError):
        if os.path.isfile(place):  # in a worktree or a submodule:    gitdir: ../.git/modules/lib
            with open(place, "rb") as file:
                place = os.path.join(top, os.fsdecode(file.read().removeprefix(b"gitdir:").strip()))
            with suppress(FileNotFoundError), open(os.path.join(place, "commondir"), "rb") as file:
                place = os.path.join(place, os.fsdecode(file.read().strip()))
    return _text(os.path.join(place, "info", "exclude"))


def read(path: str) -> str:
    """Return the text of a file of rules, with a character for each byte: git compares bytes, so `?` matches one byte.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file.read().removeprefix(codecs.BOM_UTF8).decode("latin-1")


def _text(path: str) -> str | None:
    try:
        return read(path) if stat.S_ISREG(os.stat(path).st_mode) else None
    except OSError:
        return None


def _bytewise(path: str) -> str:
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def parse(text: str) -> tuple[IgnoreRule, ...]:
    """Return the rules of a .gitignore. Lines that git does not understand are skipped."""
    return tuple(rule for line in text.split("\n") if (rule := _rule(line.removesuffix("\r"))) is not None)


def _rule(line: str) -> IgnoreRule | None:
    # *.log    !keep.log    /build    data/    docs/**/*.html    \#name    name\ (with a space at its end)
    if line.startswith("#"):
        return None
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    ignores = not line.startswith("!")
    line = line.removeprefix("!") if not ignores else line
    only_folders = line.endswith("/")
    line = line.removesuffix("/")
    if not line:
        return None
    is_anchored = "/" in line
    regex = _regex(line.removeprefix("/"))
    if regex is None:
        return None
    try:
        pattern = re.compile(regex if is_anchored else f"(?:.*/)?{regex}", re.DOTALL)
    except re.error:
        return None
    return IgnoreRule(pattern, ignores, only_folders)


def _regex(glob: str) -> str | None:
    """Return the regular expression of a pattern of git, or None if nothing can match it."""
    found = ""
    position = 0
    while position < len(glob):
        rest = glob[position:]
        at_start = position == 0 or glob[position - 1] == "/"
        if rest.startswith("**/") and at_start:
            found += "(?:.*/)?"
            position += 3
        elif rest == "**" and at_start:
            found += ".+"
            position += 2
        elif rest[0] == "*":
            count = len(rest) - len(rest.lstrip("*"))
            found += "[^/]*"
            position += count
        elif rest[0] == "?":
            found += "[^/]"
            position += 1
        elif rest[0] == "[":
            characters, length = _characters(rest)
            if not length:
                return None
            found += characters
            position += length
        elif rest[0] == "\\":
            if len(rest) == 1:
                return None
            found += re.escape(rest[1])
            position += 2
        else:
            found += re.escape(rest[0])
            position += 1
    return found


_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": " \\t\\n\\r\\f\\v",
    "xdigit": "0-9a-fA-F",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "graph": "!-~",
    "print": " -~",
    "punct": re.escape(string.punctuation),
}


def _characters(text: str) -> tuple[str, int]:
    """Return the regular expression of a set such as `[!a-c]`, and its length in the text, or 0 for an invalid set."""
    is_negated = text[1:2] in ("!", "^")
    first = position = 1 + is_negated
    inside = before = ""  # `before` may begin a range: a class or the end of another range may not
    while position < len(text) and (text[position] != "]" or position == first):
        rest = text[position:]
        named = re.match(r"\[:([^]]*):\]", rest)
        is_range = rest[0] == "-" and bool(before) and rest[1:2] not in ("]", "")
        character, length = _character(rest[1:] if is_range else rest)
        if named:
            if named[1] not in _CLASSES:
                return "", 0
            inside += _CLASSES[named[1]]
            character, length = "", len(named[0])
        elif is_range:
            if before <= character:  # in git, `b-a` matches only b
                inside += f"{re.escape(before)}-{re.escape(character)}"
            character, length = "", length + 1
        else:
            inside += re.escape(character)
        before = character
        position += length
    if position >= len(text):
        return "", 0
    # In git, no set matches a slash.
    return f"(?!/)[{'^' if is_negated else ''}{inside}]", position + 1


def _character(text: str) -> tuple[str, int]:
    """Return the first character of a text, and the length of its notation: a backslash escapes the next character."""
    return (text[1], 2) if text[0] == "\\" and len(text) > 1 else (text[0], 1)
