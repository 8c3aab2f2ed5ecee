"""Pictures of terminals: two jobs for the front page, the help, and the live view at 120 and at 80 columns."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from terminal import DOCS, PROGRAMS, REPOSITORY, draw, printed, read, shortened, start

from distrun.runner.observation.live.snapshot import Snapshot
from distrun.runner.observation.live.tables import lines
from distrun.tools.top.commands import connect, the_job

WIDTH = 104
MISSING = 7  # the file that the failing job does not find


def jobs() -> None:
    """docs/picture.svg: two jobs, one that trains and one with a rank that fails."""
    commands = ("distrun -np 2 python torch_digits.py --epochs 4", "distrun -np 2 python train.py")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copy(REPOSITORY / "examples" / "torch_digits.py", work)
        shutil.copy(PROGRAMS / "failing.py", work / "train.py")
        write_digits(work / "digits")
        screen = [(command, printed(command, work, WIDTH)) for command in commands]
    draw(DOCS / "picture.svg", "A job of two ranks that trains, and one with a rank that fails", screen, WIDTH)


def write_digits(folder: Path) -> None:
    """The digits that come with scikit-learn in 12 files, all but one of which are written."""
    digits = load_digits()
    folder.mkdir()
    for number in set(range(12)) - {MISSING}:
        np.savez(folder / f"{number}.npz", images=digits.data[number::12] / 16, labels=digits.target[number::12])


def help() -> None:
    """docs/screenshots/help.svg: the screen of `distrun --help`."""
    command = "distrun --help"
    draw(DOCS / "screenshots" / "help.svg", "What distrun --help prints", [(command, printed(command, DOCS, 80))], 80)


def live() -> None:
    """docs/live.svg and docs/screenshots/live-80.svg: the live view of one job, at 120 and at 80 columns."""
    command = "distrun -np 4 --oversubscribe python train.py"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copy(PROGRAMS / "slow.py", work / "train.py")
        job, terminal = start(command, work, WIDTH)
        written = b""
        while written.count(b"step 200 ") < 4:
            written += read(terminal)
        with connect(the_job(str(job.pid)).address) as connection:
            connection.settimeout(None)
            connection.sendall(b'{"ask": "top"}\n')
            seen = map(Snapshot.from_json, connection.makefile("rb"))
            told = next(snapshot for snapshot in seen if snapshot.slow)
        job.terminate()
        while chunk := read(terminal):
            written += chunk
        job.wait()
    above = "\n".join([line for line in shortened(written, work).splitlines() if " step " in line][-4:])
    for name, columns in (("live.svg", 120), ("screenshots/live-80.svg", 80)):
        view = "\n".join(lines(told, columns, 24))
        draw(
            DOCS / name, "The live view of a job", [(command.replace("-np", "--live -np"), f"{above}\n{view}")], columns
        )
