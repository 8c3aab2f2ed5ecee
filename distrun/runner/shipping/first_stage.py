"""The first program on another host, which the launcher sends as text: it runs a module of ours as here.

If the host has the distrun that the launcher runs, file by file, and nothing else is to be brought, it asks nothing.
Otherwise the second stage does the rest. This program must not need anything but the standard library.

The comparison is by a digest over all files, which takes about 8 ms while they are in memory. The launcher's greeting
is sent without waiting for it, so a host that lacks nothing costs no round trip.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import runpy
import struct
import sys
from typing import Any, NoReturn

COUNTED = (".py", ".cu", ".typed", ".so")
"""The files of a package that belong to it, by their ends: bytecode does not, nor what an editor has left."""
MAGIC = b"\0distrun agent\0"  # as in protocol.handshake, and the next two as in protocol.frames
HEADER = struct.Struct("!BiI")
HELLO, SHIPMENT = 0, 38


def digest(folder: str) -> str:
    """Return the SHA-256 of a package's files: of their names, sizes and contents."""
    found = hashlib.sha256()
    for name, path in counted(folder):
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        found.update(f"{len(name)} {name} {len(data)} ".encode())
        found.update(data)
    return found.hexdigest()


def is_intact(folder: str, wanted: str) -> bool:
    """Whether a package is there with this digest; one that lost its folder, or cannot be read, is not."""
    try:
        return digest(folder) == wanted
    except OSError:
        return False


def counted(folder: str, prefix: str = "") -> list[tuple[str, str]]:
    """Return the files of a package, each with its name below the folder and its path, in the order of their names."""
    found = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda item: item.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    found += counted(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(COUNTED) and entry.is_file():
                found.append((prefix + entry.name, entry.path))
    return found


def located(name: str) -> str:
    """Return the folder of a package that can be imported; empty when there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ""
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else ""


class Launcher:
    """The conversation with the launcher: questions as frames on stdout, answers as frames on stdin."""

    def tell(self, **said: Any) -> None:
        """Tell the launcher something, to which there is no answer."""
        payload = json.dumps(said).encode("ascii")
        data = MAGIC + HEADER.pack(HELLO, -1, len(payload)) + payload
        while data:
            data = data[os.write(1, data) :]

    def ask(self, **question: Any) -> bytes:
        """Ask the launcher, and return the first piece of its answer."""
        self.tell(**question)
        return self.receive()

    def receive(self) -> bytes:
        """Return the next piece of the answer. A greeting that was sent before the question comes again after it."""
        while True:
            kind, _, length = HEADER.unpack(read_exactly(HEADER.size))
            payload = read_exactly(length)
            if kind == SHIPMENT:
                return payload

    def refuse(self, problem: str) -> NoReturn:
        """Tell the launcher why this host cannot be used, and leave."""
        self.tell(problem=problem)
        sys.exit(1)


def read_exactly(count: int) -> bytes:
    """Read so many bytes from stdin, and not one more: what follows is for the module."""
    pieces = []
    while count:
        piece = os.read(0, min(count, 1 << 20))
        if not piece:  # the launcher is gone
            sys.exit(1)
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def main(sent: dict[str, Any]) -> None:
    """Run the module that the last argument names.

    Args:
        sent: the launcher's words: `path`, folders to look in first; `package`, the digest of its distrun (None: any
            will do); `needs`, packages that distrun needs here; `stage`, the digest of the second stage's text; `tasks`
            for the second stage.
    """
    module = sys.argv.pop(1)
    sys.path[:0] = sent["path"]
    lacks = [name for name in sent["needs"] if not located(name)]
    folder = located("distrun")
    is_same = sent["package"] is None or (bool(folder) and is_intact(folder, sent["package"]))
    if lacks or not is_same or sent["tasks"]:
        stage: dict[str, Any] = {"__name__": "distrun_second_stage", "COUNTED": COUNTED}
        launcher = Launcher()
        text = launcher.ask(ask="stage", found=folder)
        if hashlib.sha256(text).hexdigest() != sent["stage"]:
            sys.exit("what was sent to bring distrun here was damaged on its way")
        for part in text.split(b"\0"):
            exec(compile(part, "<distrun: second stage>", "exec"), stage)
        stage["prepare"](launcher, sent, module, is_same, lacks, is_intact)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "distrun_first_stage":
    main(json.loads(globals()["SENT"]))
