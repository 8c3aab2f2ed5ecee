"""Terminals as SVG: what commands really print, in its colours. Only the paths of this machine are shortened."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
PROGRAMS = Path(__file__).resolve().parent / "programs"

# As rich's own, without the font that it fetches from the network.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" role="img">
<title>TITLE</title>
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


def draw(target: Path, title: str, screen: list[tuple[str, str]], columns: int) -> None:
    """Write a picture of a terminal in which commands have printed something."""
    console = Console(record=True, width=columns + 2, file=io.StringIO(), force_terminal=True, highlight=False)
    for command, output in screen:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output.rstrip() + "\n"))
    svg = console.export_svg(theme=THEME, code_format=FORMAT.replace("TITLE", title), unique_id="distrun")
    target.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(f"written: {target}")


def start(command: str, folder: Path, columns: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command in this folder; returns it, and the descriptor of its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["PYTHONNODEBUGRANGES"] = "1"  # tracebacks without lines of ^^^^
    process = subprocess.Popen(command.split(), cwd=folder, env=environ, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    return process, ours


def printed(command: str, folder: Path, columns: int) -> str:
    """Run a command in this folder; returns what it wrote to its terminal."""
    process, terminal = start(command, folder, columns)
    written = b""
    while chunk := read(terminal):
        written += chunk
    os.close(terminal)
    print(f"{command}: exit status {process.wait()}")
    return shortened(written, folder)


def shortened(written: bytes, folder: Path) -> str:
    """Output without the paths of this machine."""
    return written.decode().replace("\r\n", "\n").replace(f"{folder}/", "").replace(f"{REPOSITORY}/", "~/distrun/")


def read(descriptor: int) -> bytes:
    """The next bytes; none when the other side of the terminal is closed, which Linux reports as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
