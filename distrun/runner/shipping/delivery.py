"""Everything that one launch may bring to hosts: the first program that runs there, and the answers to its requests."""

from __future__ import annotations

import hashlib
import json
import reprlib
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping import package
from distrun.runner.shipping.snapshot import ShippedFolder

_ROOM = Path(__file__).parent
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])

# Any Python must be able to parse this, so that one that is too old can report it. It is one line, for any login shell.
_CODE = (
    "import sys; sys.version_info < (3, 10) and sys.exit('distrun needs Python 3.10 or newer, and this is '"
    " + sys.version.split()[0]); sys.path = [p for p in sys.path if p]; import hashlib, os; "
    "read = lambda n: b'' if n < 1 else (lambda d: d + read(n - len(d)) if d else sys.exit(1))(os.read(0, n)); "
    "text = read({size}); "
    "hashlib.sha256(text).hexdigest() == '{digest}' or sys.exit('distrun was damaged on its way'); "
    "exec(compile(text.partition(bytes([10]))[2], 'distrun', 'exec'), "
    "dict(__name__='distrun_first_stage', SENT=text.partition(bytes([10]))[0]))"
)


@dataclass(frozen=True)
class Opening:
    """The start of a distrun program on another host."""

    code: str
    """The program for `python -c`. It reads a text of known length and digest from stdin, and runs it."""
    text: bytes
    """The text, which must be the first input on the program's stdin."""


@dataclass(frozen=True)
class Delivery:
    """The things that a launch brings to its hosts. Its methods are thread-safe."""

    brings_itself: bool = True
    """Whether distrun is brought to hosts that lack it, or have another version."""
    requirements: tuple[str, ...] | None = None
    """The requirements of the environment that ranks run in. None = no environment is made."""
    snapshots: tuple[ShippedFolder, ...] = ()
    """The folders that are shipped."""

    def opening(self, job: str = "") -> Opening:
        """Return the start of an agent, which prepares its host, or without a job's id, of a probe, which does not."""
        tasks: dict[str, Any] = {}
        if job and self.requirements is not None:
            tasks["requirements"] = self.requirements
        if job and self.snapshots:
            tasks["trees"] = [
                {"names": item.names, "to": item.to, "job": job, "manifest": item.digest} for item in self.snapshots
            ]
        needs = {name: package.package_digest(name) for name in package.NEEDS} if self.brings_itself else {}
        wanted = package.package_digest() if self.brings_itself else None
        return _opening(
            {
                "path": first_folders(),
                "package": wanted,
                "needs": needs,
                "stage": hashlib.sha256(_second_stage()).hexdigest(),
                "tasks": tasks,
            }
        )

    def answer(self, question: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the answer to a host's request, in pieces.

        Raises:
            HostError: the request cannot be answered.
        """
        try:
            match question["ask"]:
                case "stage":
                    yield _second_stage()
                case "package" if self.brings_itself and question["name"] in ("distrun", *package.NEEDS):
                    yield package.archive(question["name"])
                case "manifest":
                    yield self.snapshots[question["tree"]].packed
                case "contents":
                    yield from self.snapshots[question["tree"]].contents(question["digests"])
                case _:
                    raise HostError(f"it asks for {reprlib.repr(dict(question))}, which this launch does not bring")
        except OSError as error:
            raise HostError(f"{error.filename} cannot be read here: {error.strerror}") from None
        except (KeyError, IndexError, TypeError):
            raise HostError(f"it asks for {reprlib.repr(dict(question))}, which this launch does not have") from None


def opening_in(folders: Sequence[str]) -> Opening:
    """Return the start of a program on a host that has been prepared, which requests nothing.

    It looks in `folders`, which the host has reported, or without any, in the same folder as here.
    """
    path = [*folders[:1], *first_folders(), *folders[1:]]
    return _opening({"path": path, "package": None, "needs": {}, "stage": "", "tasks": {}})


def _opening(sent: Mapping[str, Any]) -> Opening:
    text = json.dumps(sent).encode("ascii") + b"\n" + _first_stage()
    return Opening(_CODE.format(size=len(text), digest=hashlib.sha256(text).hexdigest()), text)


def first_folders() -> list[str]:
    """Return the folders that a host looks in first: if distrun is imported from a checkout here, the same folder
    there. An installed distrun is looked for among the packages of the host's Python.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [] if _PACKAGE_ROOT in installed else [_PACKAGE_ROOT]


@cache
def _first_stage() -> bytes:
    return (_ROOM / "first_stage.py").read_bytes()


@cache
def _second_stage() -> bytes:
    return (_ROOM / "cache.py").read_bytes() + b"\0" + (_ROOM / "second_stage.py").read_bytes()
