"""`distrun logs`: prints the output of a running job, which its launcher keeps, in another terminal."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import click

from distrun.errors import LaunchError, UsageError
from distrun.runner.decisions import events
from distrun.runner.output.printer import Printer, Style
from distrun.runner.output.sinks import DescriptorSink
from distrun.tools.top.commands import SETTINGS, connected, the_job

_MOST_UNPRINTED = 64  # pieces of up to 64 KiB


@click.command(context_settings=SETTINGS)
@click.argument("job", required=False)
@click.option(
    "--rank", type=click.IntRange(0), metavar="N", help="What rank N writes, without tags. Default: all ranks."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the job ends.")
def logs(job: str | None, rank: int | None, follow: bool) -> int:
    """Print what the ranks of a running job have written last, whether the job itself shows it or not.

    JOB is the beginning of its name or the process id of its launcher, as 'distrun ps' lists them. It may be left out
    if there is only one. The launcher keeps the last 4 MiB of all ranks; --output-dir keeps everything.
    """
    found = the_job(job)
    name = found.job[:8]
    with connected(found) as connection:
        lines = connection.makefile("rb")
        try:
            connection.sendall(json.dumps({"ask": "logs", "rank": rank, "follow": follow}).encode() + b"\n")
            about = json.loads(lines.readline())
        except (OSError, ValueError):
            raise UsageError(
                f"job {name} has just ended, does not answer, or has another version of distrun; see distrun ps"
            ) from None
        if about["refused"]:
            raise UsageError(f"job {name} has no output of rank {rank}: {about['refused']}")
        connection.settimeout(None)
        status = _Printing(connection, about, rank is None).status(lines)
    if follow and status is None:
        raise UsageError(f"job {name} has ended without a word, or its launcher was killed; see distrun ps")
    return 0


class _Printing:
    """Prints what comes on a connection, as the launcher does."""

    def __init__(self, connection: socket.socket, about: dict[str, Any], is_tagged: bool) -> None:
        self._connection = connection
        self._folder = about["output_dir"]
        self._room = threading.Semaphore(_MOST_UNPRINTED)
        self._has_printed = threading.Event()
        self._unwritten: str | None = None
        style = Style(is_tagged and about["tags"], first_server=about["first_server"])
        self._printer = Printer(DescriptorSink(1), DescriptorSink(2), style, post=self._hear)
        self._printer.start()

    def status(self, lines: BinaryIO) -> int | None:
        """Print until the end, and return the exit status of the job if it is over."""
        status = None
        for line in _until_broken(lines):
            said = json.loads(line)
            if "text" in said:
                self._room.acquire()
                data = said["text"].encode(errors="surrogateescape")
                self._printer.output(said["rank"], said["stream"], data, lambda size: self._room.release())
            elif "lost" in said:
                where = f"all is in {self._folder}" if self._folder else "--output-dir keeps everything"
                self._printer.say(f"distrun: {said['lost']} earlier bytes are not kept; {where}")
            else:
                status = said["status"]
        self._printer.close(None if status is None else f"distrun: the job is over, with exit status {status}")
        self._has_printed.wait()
        if self._unwritten:
            raise LaunchError(self._unwritten)
        return 0 if self._unwritten is not None else status

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.Printed):
            self._has_printed.set()
        elif isinstance(event, events.OutputClosed):
            self._unwritten = event.reason
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


def _until_broken(lines: BinaryIO) -> Iterator[bytes]:
    with suppress(OSError):
        yield from lines
