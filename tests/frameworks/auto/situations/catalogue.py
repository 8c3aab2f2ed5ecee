"""Read the situations: short scripts with their truth, in the text files of the folders `torch` and `keras`.

A file is a list of sections and blocks:

    #= PREAMBLE | KIND | NAMES
    lines of Python
    #: NAME | TRUTH | WHY | OPTIONS
    lines of Python

A section holds until the next one. Its preamble is a block of `preambles.py.txt` in the same folder, between the blocks
`head` and `end` if there are any: a whole script with places for the lines of a block, `@before`, `@body` and `@after`,
whose indentation the lines take. What stands before a line `---` goes to the first, what stands behind a line `+++` to
the last. The section's own lines go to the same places, before those of each of its blocks. NAMES, by default
`x, y, c`, are what the script calls the tensors of a batch, at `@names`. Options are, with their defaults,
`seed=5 n=96 batch=16`, which become the constants SEED, N and BATCH of the script; `tolerance=1e-4`, by how much
weights may differ, relative to the largest of their tensor; and in the folder `keras` also `backend=tensorflow`.

The truth says what data-parallel training in global mode can come to at best:

- `same`: the body runs on parts of a batch, and gradients that are combined properly give one process's weights.
- `random`: the same, but the script draws random numbers in its loop, so it is right in distribution only.
- `cross`: not possible, or not to be expected; the mode refuses it, or does it right by other means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

FOLDER = Path(__file__).parent
TRUTHS = ("same", "random", "cross")
_DEFAULTS = {"seed": "5", "n": "96", "batch": "16", "tolerance": "1e-4", "backend": "tensorflow"}
_LOOP = re.compile(
    r"^( *)for (?:step, |i, |_, )?\(?([a-z](?:, [a-z])*)\)? in (?:enumerate\()?loader\)?:$", re.MULTILINE
)
_MODEL = re.compile(r"^( *\w+ = (?:nn\.\w+|(?!DataLoader|Tensor)[A-Z]\w*)\(.*\))$", re.MULTILINE)
_PLACE = re.compile(r"^([ ]*)@(before|body|after)\n", re.MULTILINE)


@dataclass(frozen=True)
class Situation:
    """A script, and what is true of it."""

    name: str
    kind: str
    group: str
    """The file that it is from: `torch/vision`."""
    truth: str
    why: str
    backend: str
    """`torch` for plain PyTorch, else the backend of Keras: `keras-tensorflow`, `keras-jax`, `keras-torch`."""
    script: str
    tolerance: float

    def __str__(self) -> str:
        return f"{self.group}/{self.name}"


def situations() -> list[Situation]:
    """Return all situations in the order of the files.

    Raises:
        ValueError: a file is not written as it should be, with its name and the block.
    """
    found = [each for folder in ("torch", "keras") for each in _of_folder(FOLDER / folder)]
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names of situations are given twice: {', '.join(twice)}")
    return found


def on_cuda(situation: Situation) -> Situation | None:
    """Return a situation of torch with its models and batches on the GPU; None if it has none that are known by name.

    Many then fail, as other tensors of theirs stay on the CPU.
    """
    script, batches = _LOOP.subn(_moved, situation.script)
    script, models = _MODEL.subn(r"\1.cuda()", script)
    head = "import torch; torch.backends.cudnn.allow_tf32 = False\n"  # rounding is as on the CPU
    return replace(situation, script=head + script) if batches and models else None


def _moved(loop: re.Match[str]) -> str:
    names = loop[2].split(", ")
    return f"{loop[0]}\n{loop[1]}    {', '.join(names)} = {', '.join(f'{name}.cuda()' for name in names)}"


def _of_folder(folder: Path) -> Iterator[Situation]:
    preambles = {words[0]: text for _, _, words, text in _blocks(folder / "preambles.py.txt")}
    head, end = preambles.pop("head", ""), preambles.pop("end", "")
    preambles = {name: head + text + end for name, text in preambles.items()}
    for path in sorted(folder.glob("*.py.txt")):
        if path.name != "preambles.py.txt":
            for section, shared, words, text in _blocks(path):
                try:
                    yield _situation(path, section, shared, words, text, preambles)
                except (KeyError, IndexError) as error:
                    raise ValueError(f"{path.name}: block {words}: {error!r}") from error


def _blocks(path: Path) -> Iterator[tuple[list[str], str, list[str], str]]:
    """Yield the words of the section and its lines, the words of the head and the lines of each block of a file."""
    section: list[str] = []
    shared = ""
    for piece in re.split(r"^(?=#[:=] )", path.read_text(), flags=re.MULTILINE):
        head, _, text = piece.partition("\n")
        words = [word.strip() for word in head[2:].split("|")]
        if head.startswith("#= "):
            section, shared = words, text.strip("\n") + "\n"
        elif head.startswith("#: "):
            yield section, shared, words, text.strip("\n") + "\n"


def _places(text: str) -> tuple[str, str, str]:
    """Return what is to stand at `@before`, `@body` and `@after`."""
    *before, rest = re.split(r"^---\n", text.lstrip("\n"), flags=re.MULTILINE)
    body, *after = re.split(r"^\+\+\+\n", rest, flags=re.MULTILINE)
    return "".join(before), body, "".join(after)


def _situation(
    path: Path, section: list[str], shared: str, words: list[str], text: str, preambles: dict[str, str]
) -> Situation:
    name, truth, why = words[:3]
    if truth not in TRUTHS:
        raise KeyError(truth)
    options = {**_DEFAULTS, **dict(each.split("=") for each in " ".join(words[3:]).split())}
    places = dict(zip(("before", "body", "after"), map(str.__add__, _places(shared), _places(text)), strict=True))

    def put(place: re.Match[str]) -> str:
        return "".join(f"{place[1]}{line}".rstrip(" ") for line in places[place[2]].splitlines(keepends=True))

    names = section[2] if len(section) > 2 else "x, y, c"
    constants = f"SEED, N, BATCH = {options['seed']}, {options['n']}, {options['batch']}\n"
    group = f"{path.parent.name}/{path.name.removesuffix('.py.txt')}"
    backend = "torch" if path.parent.name == "torch" else f"keras-{options['backend']}"
    script = constants + _PLACE.sub(put, preambles[section[0]]).replace("@names", names)
    return Situation(name, section[1], group, truth, why, backend, script, float(options["tolerance"]))
