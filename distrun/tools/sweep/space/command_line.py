"""The command of a sweep: its words, its parameters, and the command of a trial with certain values."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from distrun.errors import UsageError
from distrun.tools.sweep.space.ranges import Choices, Range, Value, parse_range

_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"
_PARAMETER = re.compile(rf"({_NAME})=([^{{}}]+)", re.DOTALL)
_CHOICES = re.compile(rf"({_NAME})=(.*\|.*)", re.DOTALL)
_PLACE = re.compile(rf"\{{{_NAME}\}}")
SEED = "seed"
"""The name of the parameter that `--seeds` varies."""


@dataclass(frozen=True)
class Template:
    """A command with placeholders for the values of parameters."""

    words: tuple[str, ...]
    """The command, in which `{lr}` stands for the value of lr."""
    fixed: tuple[str, ...] = ()
    """The arguments after `--`, which are passed on as they are."""
    parameters: Mapping[str, Range] = field(default_factory=dict)

    def command(self, values: Mapping[str, Value]) -> list[str]:
        """Return the command of a trial. A parameter without a placeholder is appended as `--name=value`."""
        texts = {name: value if isinstance(value, str) else repr(value) for name, value in values.items()}
        words = [_filled(word, texts) for word in self.words]
        named = {name for name in texts if any(_place(name) in word for word in self.words)}
        options = [f"--{name}={text}" for name, text in texts.items() if name not in named]
        return [*words, *options, *self.fixed]

    def has_place_in(self, word: str) -> bool:
        """Whether a word contains the placeholder of a parameter."""
        return any(_place(name) in word for name in self.parameters)

    def with_seeds(self, count: int) -> Template:
        """Return the same command with a parameter `seed` that has the values 0 to `count - 1`.

        Raises:
            UsageError: there is such a parameter already.
        """
        if SEED in self.parameters:
            raise UsageError(f"--seeds {count} varies the parameter {SEED}, which has values already: leave one out")
        seeds = Choices(tuple(map(str, range(count))))
        return replace(self, parameters={**self.parameters, SEED: seeds})


def _place(name: str) -> str:
    return f"{{{name}}}"


def _filled(word: str, texts: Mapping[str, str]) -> str:
    if "{" not in word or not texts:
        return word
    names = "|".join(map(re.escape, texts))
    return re.sub(rf"\{{({names})\}}", lambda match: texts[match[1]], word)


def parse_words(words: Sequence[str], python: str = sys.executable) -> Template:
    """Return the command that the words of `distrun sweep` describe.

    Args:
        words: such as `train.py lr=log:1e-4..1e-1 width=16|32 -- --epochs 5`. `NAME=RANGE` is a parameter,
            except as the first word, and after `--`.
        python: the interpreter for a command that is only a script.

    Raises:
        UsageError: there is no command, or a range is invalid.
    """
    rest = list(words)
    fixed: list[str] = []
    if "--" in rest:
        place = rest.index("--")
        rest, fixed = rest[:place], rest[place + 1 :]
    if not rest:
        raise UsageError(
            "there is no command to try: give one after the options, as in distrun sweep --trials 20 train.py "
            "lr=log:1e-4..1e-1"
        )
    command = [rest[0]] if not rest[0].endswith(".py") else [python, rest[0]]
    parameters: dict[str, Range] = {}
    for word in rest[1:]:
        match = _PARAMETER.fullmatch(word)
        if match is None:
            _check_word(word)
            command.append(word)
            continue
        if match[1] in parameters:
            raise UsageError(f"parameter {match[1]} is given twice: give it once, with all of its values")
        parameters[match[1]] = parse_range(match[1], match[2])
    return Template(tuple(command), tuple(fixed), parameters)


def _check_word(word: str) -> None:
    """Refuse a word that was meant as choices, rather than pass it on as an argument of the command."""
    choices = _CHOICES.fullmatch(word)
    if choices is not None and not _PLACE.search(word):
        raise UsageError(
            f"parameter {choices[1]}={choices[2]!r} has braces, which are for names of parameters: give choices "
            "without them, or the word behind -- if it is no parameter"
        )
