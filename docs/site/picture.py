"""Draw docs/picture.svg: two jobs as a terminal shows them, one that trains and one with a rank that fails.

The jobs are real. What they write to a terminal is recorded, and rendered with the colours that it came in. Only the
paths of this machine are shortened.
"""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from sklearn.datasets import load_digits

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COLUMNS = 104
JOBS = ("distrun -np 2 python torch_digits.py --epochs 4", "distrun -np 2 python train.py")
MISSING = 7  # the file that train.py does not find

# As rich's own, without the font that it fetches from the network.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img">
<title>A job of two ranks that trains, and one with a rank that fails</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
  white-space: pre;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect fill="#161b22" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(9, 9)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
THEME = TerminalTheme(
    (22, 27, 34),
    (201, 209, 217),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copy(REPOSITORY / "examples" / "torch_digits.py", work)
        shutil.copy(HERE / "train.py", work)
        write_digits(work / "digits")
        for command in JOBS:
            output, status = record(command, work)
            shown = output.replace(f"{work}/", "").replace(f"{REPOSITORY}/", "~/distrun/")
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(shown.rstrip() + "\n"))
            print(f"{command}: exit status {status}\n{shown}")
    svg = console.export_svg(title="", theme=THEME, code_format=FORMAT, unique_id="distrun")
    target = REPOSITORY / "docs" / "picture.svg"
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(f"written: {target}")


def write_digits(folder: Path) -> None:
    """The digits that come with scikit-learn in 12 files, all but one of which are written."""
    digits = load_digits()
    folder.mkdir()
    for number in set(range(12)) - {MISSING}:
        np.savez(folder / f"{number}.npz", images=digits.data[number::12] / 16, labels=digits.target[number::12])


def record(command: str, folder: Path) -> tuple[str, int]:
    """Run the command in this folder; returns what it wrote to its terminal, and its exit status."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["PYTHONNODEBUGRANGES"] = "1"  # tracebacks without lines of ^^^^
    process = subprocess.Popen(command.split(), cwd=folder, env=environ, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    written = b""
    while chunk := read(ours):
        written += chunk
    os.close(ours)
    return written.decode().replace("\r\n", "\n"), process.wait()


def read(descriptor: int) -> bytes:
    """The next bytes; none when the other side of the terminal is closed, which Linux reports as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
