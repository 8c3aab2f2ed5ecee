"""The parts of a table of flags: a flag's names, the values that it takes, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ignored:
    """The flag changes nothing about the job. All ignored flags of a command line are told in one line."""

    why: str


@dataclass(frozen=True)
class Refused:
    """Without what the flag asks for, the job would be another one."""

    remedy: str
    """The rest of the sentence, which names ours where there is one."""


@dataclass(frozen=True)
class Holds:
    """The flag asks for what is so anyway: it is accepted, and nothing is said."""

    why: str


@dataclass(frozen=True)
class Becomes:
    """The flag becomes options of distrun."""

    words: str
    """The options, in which `{}` stands for each value: `--hosts {}`. With `convert` it is there for readers only."""
    convert: Callable[..., list[str] | Ignored | Translation] | None = None
    """Makes the options from the values. It raises UsageError for a value that cannot be met."""
    joined: bool = False
    """Whether the values of repeated flags are one list, with commas. Otherwise the last one wins."""
    yields: bool = False
    """Whether options from other flags win over these wherever they stand."""


Effect = Becomes | Holds | Ignored | Refused


@dataclass(frozen=True)
class Flag:
    """One row of a table."""

    names: tuple[str, ...]
    """All spellings, the usual one first."""
    effect: Effect
    values: tuple[str, ...] = ()
    """A name for each value that it takes."""
    one_word: bool = False
    """Whether NAME=VALUE is two values."""


def flag(names: str, effect: Effect) -> Flag:
    """Return a row. `names` are the spellings and then the names of the values: `-np --num-proc N`."""
    words = names.split()
    spellings = tuple(word for word in words if word.startswith("-"))
    return Flag(spellings, effect, tuple(words[len(spellings) :]))


@dataclass(frozen=True)
class Translation:
    """A command line of distrun."""

    options: tuple[str, ...]
    command: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...] = ()
    """The flags that were ignored, each with the reason."""

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        return [*self.options, *self.command]

    def description(self) -> str:
        """Return one line about all flags that were ignored, `ignored: --mca pml ob1 (they tune ...)`; empty if none
        was."""
        reasons: dict[str, list[str]] = {}
        for said, why in self.ignored:
            reasons.setdefault(why, []).append(said)
        listed = "; ".join(f"{', '.join(flags)} ({why})" for why, flags in reasons.items())
        return f"ignored: {listed}" if listed else ""


def unchanged(translation: Translation) -> Translation:
    """Return the translation as it is."""
    return translation


@dataclass(frozen=True)
class Program:
    """A launcher whose command lines are understood."""

    name: str
    flags: tuple[Flag, ...]
    defaults: tuple[str, ...] = ()
    """Options of distrun with which the program's own defaults are met; the flags come after them and win."""
    any_dashes: bool = False
    """Whether -host and --host are the same."""
    abbreviations: bool = False
    """Whether the beginning of a long flag is enough where only one begins so."""
    variables: str = ""
    """The beginning of variables that stand for flags: PET_ if PET_NNODES does for --nnodes. Empty = there are none."""
    finish: Callable[[Translation], Translation] = unchanged
    """Does what no row can: looks at several flags at once, or at the command."""
