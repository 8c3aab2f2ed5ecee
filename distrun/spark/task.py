"""The code of a task, in Spark's Python worker: starts the process of the task, and waits for its end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from distrun.errors import UsageError
from distrun.host.endpoints import bind_free
from distrun.host.forks import die_with_parent
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.spark.assignment import Assignment, TaskAssignment, TaskReport
from distrun.spark.live import DriverLine

_COMMAND = (sys.executable, "-c", "from distrun.spark.agent import main; main()")  # imports much, none of it here
_LAST_OUTPUT = 5.0  # seconds to read the last output of ended ranks, whose children may keep the streams open


def run_task(assignment: Assignment) -> TaskReport:
    """Take part in the job, and return the report of its end."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    index = context.partitionId()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen_anywhere()) if index == 0 else None
        source, sink = os.pipe()
        stack.callback(os.close, source)
        process = stack.enter_context(_process(sink, listener))
        stack.callback(process.kill)  # its ranks end with it
        told = json.dumps(_endpoint(context, assignment, listener) if listener else None)
        address, port, problem = json.loads(context.allGather(told)[0])
        if problem:
            return TaskReport(index, failure=problem, is_usage_error=True)
        place = TaskAssignment(index, address, port, listener.fileno() if listener else None, sink, _gpus(context))
        return _run(process, source, assignment, place)


def listen_anywhere() -> socket.socket:
    """Return a socket that listens at a free port, on all IPv6 and IPv4 addresses."""
    with contextlib.suppress(OSError):  # the kernel has no IPv6
        return _listener(socket.AF_INET6, "::")
    return _listener(socket.AF_INET, "0.0.0.0")


def _listener(family: socket.AddressFamily, wildcard: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bind_free(listener, wildcard)
        listener.listen(4096)
        return listener
    except BaseException:
        listener.close()
        raise


def _endpoint(context: Any, assignment: Assignment, listener: socket.socket) -> tuple[str, int, str]:
    """Return the address and port where task 0 listens: Spark's address of its host, or one in the requested network.

    The third item is the reason if there is no such address. All tasks must learn it, or they would wait for ever.
    """
    address = context.getTaskInfos()[0].address.rpartition(":")[0].strip("[]")
    if assignment.network:
        try:
            allowed = matching(reachable(own_interfaces()), assignment.network, f"host {socket.gethostname()!r}")
        except UsageError as error:
            return "", 0, str(error).replace("--network", "nics")
        address = allowed[0].address
    return address, listener.getsockname()[1], ""


def _gpus(context: Any) -> tuple[str, ...]:
    """Return the GPUs that Spark has assigned to this task."""
    given = context.resources().get("gpu")
    return tuple(given.addresses) if given else ()


def _process(report: int, listener: socket.socket | None) -> subprocess.Popen[bytes]:
    """Start the process of this task. It imports its modules while the tasks exchange addresses."""
    try:
        return subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            pass_fds=[report, *([listener.fileno()] if listener else [])],
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
    finally:
        os.close(report)


def _run(process: subprocess.Popen[bytes], source: int, assignment: Assignment, place: TaskAssignment) -> TaskReport:
    """Send the process its assignment and wait for its report. Its output goes to the executor's log too."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    line = DriverLine(None if place.index else assignment.driver, assignment.key)
    none, last = deque[bytes](maxlen=0), deque[bytes](maxlen=20)
    logs = (sys.stdout, sys.stderr) if assignment.is_logged else (None, None)
    streams = ((process.stdout, logs[0], 0, none), (process.stderr, logs[1], 1, last))
    readers = [threading.Thread(target=_copy, args=(*stream, line), daemon=True) for stream in streams]
    for reader in readers:
        reader.start()
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            pickle.dump((assignment, place), stdin)
        with open(source, "rb", closefd=False) as pipe:
            data = pipe.read()
        status = process.wait()
        for reader in readers:
            reader.join(_LAST_OUTPUT)
    finally:
        stdout, stderr = line.close()
    report = pickle.loads(data) if data else _without_report(place, status, b"".join(last))
    return replace(report, host=socket.gethostname(), stdout=stdout, stderr=stderr)


def _copy(source: BinaryIO, log: Any, stream: int, last: deque[bytes], driver: DriverLine) -> None:
    """Copy a stream to the executor's log, if `log` is given, and send its lines to the driver."""
    for line in source:
        last.append(line)
        driver.send(stream, line)
        if log is not None:
            log.write(line.decode(errors="replace"))
            log.flush()


def _without_report(place: TaskAssignment, status: int, stderr: bytes) -> TaskReport:
    how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
    last = stderr.decode(errors="replace").strip().splitlines()
    said = "\n".join(["; its last lines on stderr:", *(f"    {line}" for line in last)]) if last else ""
    return TaskReport(place.index, socket.gethostname(), failure=f"the agent of task {place.index} {how}{said}")


def by_rows(assignment: Assignment, rows: Iterable[Any]) -> Iterator[bytes]:
    """Run the task as a function of a partition of an RDD."""
    del rows
    yield pickle.dumps(run_task(assignment))


def by_batches(assignment: Assignment, batches: Iterable[Any]) -> Iterator[Any]:
    """Run the task as a function of the Arrow batches of a partition."""
    import pyarrow

    for _ in batches:
        pass
    yield pyarrow.record_batch([pyarrow.array([pickle.dumps(run_task(assignment))], pyarrow.binary())], ["report"])
