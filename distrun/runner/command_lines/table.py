"""The types of a table of flags, a flag's names, its values and its effect in distrun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ignored:
    """The flag has no effect. All ignored flags of a command line are reported in one line."""

    why: str


@dataclass(frozen=True)
class Refused:
    """The flag cannot be ignored, as the job would be another one without it."""

    remedy: str
    """The rest of the error message, which names distrun's equivalent if there is one."""


@dataclass(frozen=True)
class Holds:
    """The flag asks for distrun's normal behaviour: it is accepted silently."""

    why: str


@dataclass(frozen=True)
class Becomes:
    """The flag becomes options of distrun."""

    words: str
    """The options, with `{}` for each value: `--hosts {}`. With `convert`, it is used in documentation only."""
    convert: Callable[..., list[str] | Ignored | Translation] | None = None
    """Makes the options from the values. Raises UsageError for a value that is not supported."""
    joined: bool = False
    """Whether the values of repeated flags are joined with commas. Otherwise the last one wins."""
    yields: bool = False
    """Whether options from other flags override these at any position."""


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
    """Return a row of a table. `names` has the spellings, followed by the names of the values: `-np --num-proc N`."""
    words = names.split()
    spellings = tuple(word for word in words if word.startswith("-"))
    return Flag(spellings, effect, tuple(words[len(spellings) :]))


@dataclass(frozen=True)
class Translation:
    """A command line of distrun, as the result of a translation."""

    options: tuple[str, ...]
    command: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...] = ()
    """The flags that were ignored, each with the reason."""

    @property
    def arguments(self) -> list[str]:
        """The words of the command line."""
        return [*self.options, *self.command]

    def description(self) -> str:
        """Return one line about all ignored flags, `ignored: --mca pml ob1 (they tune ...)`, or "" without any."""
        reasons: dict[str, list[str]] = {}
        for said, why in self.ignored:
            reasons.setdefault(why, []).append(said)
        listed = "; ".join(f"{', '.join(flags)} ({why})" for why, flags in reasons.items())
        return f"ignored: {listed}" if listed else ""


@dataclass(frozen=True)
class Program:
    """A launcher whose command lines can be translated."""

    name: str
    flags: tuple[Flag, ...]
    defaults: tuple[str, ...] = ()
    """Options of distrun that reproduce the program's own defaults. They come first, so that flags override them."""
    any_dashes: bool = False
    """Whether -host and --host are equivalent."""
    abbreviations: bool = False
    """Whether an unambiguous prefix of a long flag is accepted."""
    variables: str = ""
    """The prefix of variables that stand for flags: PET_ if PET_NNODES stands for --nnodes. Empty = none."""
    finish: Callable[[Translation], Translation] = lambda translation: translation
    """Does what a row cannot do, such as checks of several flags together, or of the command."""
