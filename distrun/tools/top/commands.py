"""`distrun ps`, which lists running jobs, `distrun top`, which shows one of them, and `distrun stop`, which ends one.

The jobs of this user on this machine are found by their launchers' sockets, which the kernel lists.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import click

from distrun.errors import BootstrapError, UsageError
from distrun.host import abstract_sockets
from distrun.runner.observation.live.keys import Keys
from distrun.runner.observation.live.sentences import clock, from_script, number, sentence
from distrun.runner.observation.live.server import prefix
from distrun.runner.observation.live.snapshot import Snapshot
from distrun.runner.output.panel import Panel

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
_TIMEOUT = 5.0  # seconds for a launcher to answer
_MEASURING = 2.0  # seconds in which speeds become known


@click.command(context_settings=SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects, empty without any job.")
def ps(as_json: bool) -> int:
    """List your jobs whose launchers run on this machine."""
    if as_json:
        click.echo(json.dumps([_facts(job) for job in jobs()], indent=2))
        return 0
    rows = [("JOB", "PID", "RANKS", "HOSTS", "FOR", "STEPS/S", "COMMAND"), *map(_row, jobs())]
    if len(rows) == 1:
        click.echo("no job of yours runs on this machine", err=True)
        return 0
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]))
    return 0


def _facts(job: Job) -> dict[str, Any]:
    return {name: value for name, value in vars(job).items() if name != "address"}


def _row(job: Job) -> tuple[str, ...]:
    hosts = ",".join(job.hosts[:3]) + (f" and {len(job.hosts) - 3} more" if len(job.hosts) > 3 else "")
    steps = "-" if job.steps_per_second is None else number(job.steps_per_second)
    age = clock(max(0.0, time.time() - job.since))
    return job.job[:8], str(job.pid), str(job.ranks), hosts, age, steps, job.command


@click.command(context_settings=SETTINGS)
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one object, of what is known after two seconds, and end.")
def top(job: str | None, as_json: bool) -> int:
    """Show a running job: the speed of each rank, what it spends its time on, and which ranks it waits for.

    JOB is the beginning of its name or the process id of its launcher, as 'distrun ps' lists them. It may be left out
    if there is only one. The job is observed while this command runs, and is not disturbed.
    """
    if not as_json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "distrun top needs a terminal: without one, start the job with --live, which writes lines, or give --json"
        )
    found = the_job(job)
    with connected(found) as connection:
        connection.settimeout(None)
        connection.sendall(b'{"ask": "top"}\n')
        return _print_once(connection, found) if as_json else _look_on(connection, found)


@click.command(context_settings=SETTINGS)
@click.argument("job")
def stop(job: str) -> int:
    """End a job as SIGTERM to its launcher does: its ranks get SIGTERM and, after --grace seconds, SIGKILL.

    JOB is the beginning of its name or the process id of its launcher, as 'distrun ps' lists them. Only your own jobs
    can be ended. The command does not wait for the end.
    """
    found = the_job(job)
    with connected(found) as connection:
        pid, _ = abstract_sockets.peer_process(connection)  # as it is called here, where it may have another number
        connection.sendall(b'{"ask": "about"}\n')
        is_there = bool(connection.makefile("rb").readline())
        if not (pid and is_there):
            raise UsageError(
                f"job {found.job[:8]} has just ended, or runs in a container: end it there; see distrun ps"
            )
        os.kill(pid, signal.SIGTERM)
    click.echo(f"job {found.job[:8]} was told to end")
    return 0


def connected(job: Job) -> socket.socket:
    """Return a connection to the launcher of a job. Raises UsageError: it does not answer."""
    try:
        return connect(job.address)
    except (OSError, BootstrapError) as error:
        raise UsageError(f"job {job.job[:8]} has just ended, or does not answer ({error}); see distrun ps") from None


def _print_once(connection: socket.socket, job: Job) -> int:
    """Print the first snapshot in which speeds can be known, or the last one of a job that ends before."""
    known_from = time.monotonic() + _TIMEOUT + _MEASURING
    last: bytes | None = None
    for line in connection.makefile("rb"):
        last = line
        if Snapshot.from_json(line).ranks:  # from their first report on, speeds are measured
            known_from = min(known_from, time.monotonic() + _MEASURING)
        if time.monotonic() >= known_from:
            break
    if last is None:
        raise UsageError(f"job {job.job[:8]} has just ended; see distrun ps")
    click.echo(json.dumps(json.loads(last), indent=2))
    return 0


def _look_on(connection: socket.socket, job: Job) -> int:
    from distrun.runner.observation.live.tables import lines

    panel = Panel(1)
    above: list[str] = []
    keys = Keys(above.append, is_client=True)
    keys.on_stack = lambda rank: connection.sendall(json.dumps({"stack": rank}).encode() + b"\n")
    keys.on_log = lambda rank: connection.sendall(json.dumps({"log": rank}).encode() + b"\n")
    signal.signal(signal.SIGTERM, lambda *_: keys.leave())
    keys.start()
    last: Snapshot | None = None
    try:
        for line in connection.makefile("rb"):
            last = Snapshot.from_json(line)
            panel.show(lines(last, *panel.size, keys.prompt, is_all=True))
            said, above[:] = [*above, *last.texts], []
            _write(panel.around("".join(f"{text}\n" for text in said).encode()))
            if last.status is not None:
                break
    except KeyboardInterrupt:
        pass
    finally:
        keys.close()
        panel.show(())
        _write(panel.around(b""))
    if last is not None and last.status is not None:
        click.echo(f"job {job.job[:8]} is over, with exit status {last.status}: {sentence(last)}")
    elif not keys.is_closed and last is None:
        raise UsageError(f"job {job.job[:8]} has just ended; see distrun ps")
    return 0


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


@dataclass(frozen=True)
class Job:
    """A job that is running."""

    job: str
    pid: int
    """The process id of its launcher."""
    ranks: int
    hosts: list[str]
    command: str
    since: float
    """The time of its start, in seconds of the wall clock."""
    steps_per_second: float | None
    """None = it is not being observed at present, or its steps are not known."""
    address: bytes = b""
    """The address of its launcher's socket."""


def jobs() -> list[Job]:
    """Return all jobs, the oldest first."""
    found = []
    for name in abstract_sockets.listening(prefix()):
        try:
            with connect(name) as connection:
                connection.sendall(b'{"ask": "about"}\n')
                about = json.loads(connection.makefile("rb").readline())
                about["command"] = " ".join(about["command"].split())  # it may contain line breaks
                found.append(Job(**about, address=name))
        except (OSError, BootstrapError, ValueError, TypeError, KeyError):
            continue  # it has just ended, or has another version, or another user has taken such a name
    return sorted(found, key=lambda one: one.since)


def the_job(wanted: str | None) -> Job:
    """Return the job whose name begins with `wanted`, or whose launcher has this process id. None = the only job.

    Raises:
        UsageError: there is no such job, or there are several.
    """
    there = jobs()
    if not there:
        raise UsageError(
            "no job of yours runs on this machine: start one with distrun, or look on the host of its launcher"
        )
    meant = [one for one in there if wanted is None or one.job.startswith(wanted) or str(one.pid) == wanted]
    if len(meant) == 1:
        return meant[0]
    names = ", ".join(f"{one.job[:8]} ({' '.join(from_script(one.command.split()))[:40]})" for one in there)
    if not meant:
        raise UsageError(f"no job is called {wanted!r}: there are {names}; see distrun ps")
    raise UsageError(
        f"{len(meant)} jobs may be meant: say which, by its name or process id as distrun ps lists them: {names}"
    )


def connect(address: bytes) -> socket.socket:
    """Connect to a launcher, and return the connection.

    Raises:
        OSError: no launcher listens there.
        BootstrapError: the launcher is another user's.
    """
    connection = abstract_sockets.connect(socket.SOCK_STREAM, address)
    connection.settimeout(_TIMEOUT)
    return connection
