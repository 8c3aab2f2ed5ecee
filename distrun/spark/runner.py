"""`run`: calls a function on all ranks of a job that Spark places."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO, TypeVar

from distrun.errors import LaunchError, NotOfferedError, UsageError
from distrun.host.numerals import MOST_RANKS, real_number
from distrun.runner.job.calls import pickled_call, raise_sent, result_of
from distrun.runner.launch.joined import new_key
from distrun.runner.output.sinks import TextSink
from distrun.runner.planning.variables.environ import forwarded_settings
from distrun.spark.assignment import Assignment, TaskReport
from distrun.spark.live import printed_live
from distrun.spark.sessions import active_session

Result = TypeVar("Result")

START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
_START_TIMEOUT = 600.0  # seconds, as Horovod's


def run(
    fn: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Result]:
    """Call `fn(*args, **kwargs)` on `num_proc` ranks on Spark's executors, and return the results by rank.

    Each rank is a process of its own beside a task of one barrier stage, so that all of them run at once. Ranks whose
    tasks are on one host share its memory.

    Args:
        fn, args, kwargs: the call, the same on every rank; it may use `distrun.init()` and all that follows.
        num_proc: the number of ranks. None: `spark.default.parallelism`.
        start_timeout: seconds for Spark to start all tasks and for the ranks to connect. None: the value of
            HOROVOD_SPARK_START_TIMEOUT, or 600.
        env: variables for the ranks, besides those of their executor and the DISTRUN_* of this process.
        stdout, stderr: the streams for the output of the ranks, which is printed live if task 0 can reach the driver,
            and otherwise at the end of the job. None: this process's streams.
        verbose: 0 prints no output of the ranks.
        nics: the interfaces and subnets that ranks of other hosts may use.
        prefix_output_with_timestamp: whether each line of output begins with its time.
        use_gloo: changes nothing.
        use_mpi, extra_mpi_args, executable: Horovod's arguments, refused.

    Raises:
        UsageError: an argument is impossible, or there is no session of Spark.
        NotOfferedError: an argument asks for something that distrun does not offer here.
        LaunchError: a rank, an executor or the stage was lost. The text is the report of the first failure.
        Exception: the exception of the first rank that failed. Its cause is a `RemoteTraceback`.
    """
    del use_gloo
    _refuse(use_mpi, extra_mpi_args, executable)
    if not callable(fn):
        raise UsageError(f"{fn!r} cannot be called: give a function, and its arguments as args=(...)")
    session = active_session()
    size = session.default_size() if num_proc is None else num_proc
    if not (isinstance(size, int) and 1 <= size <= MOST_RANKS):
        raise UsageError(f"num_proc={num_proc!r} is not a number of ranks: give 1 to {MOST_RANKS}, or None")
    key = new_key()
    assignment = Assignment(
        size=size,
        key=key,
        call=pickled_call(fn, tuple(args), dict(kwargs or {})),
        env={**forwarded_settings(os.environ), **(env or {})},
        is_logged=not session.is_local(),
        start_timeout=_timeout(start_timeout),
        timestamps=prefix_output_with_timestamp,
        network=nics if isinstance(nics, str) else ",".join(nics or ()),
    )
    out, err = stdout or sys.stdout, stderr or sys.stderr
    addresses = session.driver_addresses() if verbose else None
    with printed_live(addresses, key, out, err) as driver:
        reports = session.run(replace(assignment, driver=driver))
    first = next(report for report in reports if report.index == 0)
    if verbose:
        TextSink(out).write(first.stdout)
        TextSink(err).write(first.stderr)
    return _results(first, reports)


def _results(first: TaskReport, reports: Sequence[TaskReport]) -> list[Any]:
    if first.failed_rank is not None and first.failed_rank in first.results:
        raise_sent(first.failed_rank, first.results[first.failed_rank])
    failed = next((report for report in (first, *reports) if report.failure), None)
    if failed is not None:
        kind = UsageError if failed.is_usage_error else LaunchError
        raise kind(failed.failure.removeprefix("distrun: "))
    return [result_of(rank, first.results) for rank in range(first.size)]


def _timeout(given: float | None) -> float:
    text = os.environ.get(START_TIMEOUT) if given is None else given
    seconds = _START_TIMEOUT if text in (None, "") else real_number(str(text))
    if not seconds:
        name = START_TIMEOUT if given is None else "start_timeout"
        raise UsageError(f"{name}={text!r} is not a number of seconds > 0: correct it, or leave it out")
    return seconds


def _refuse(use_mpi: object, extra_mpi_args: object, executable: str | None) -> None:
    if use_mpi or extra_mpi_args:
        given = f"use_mpi={use_mpi}" if use_mpi else f"extra_mpi_args={extra_mpi_args!r}"
        raise NotOfferedError(f"{given}: ranks on Spark are connected without MPI: leave it out")
    if executable and executable != sys.executable:
        raise NotOfferedError(
            f"executable={executable!r}: ranks run in the Python of their executors: set spark.pyspark.python instead"
        )
