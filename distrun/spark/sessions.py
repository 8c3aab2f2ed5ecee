"""Submitting tasks to Spark: as a barrier stage of an RDD, or through Spark Connect."""

from __future__ import annotations

import pickle
import re
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from distrun.errors import LaunchError, UsageError
from distrun.spark import task
from distrun.spark.assignment import Assignment, TaskReport

_CANCEL_TIMEOUT = 10.0  # seconds for a cancelled job to end
_POLL = 0.1  # seconds: Spark does not announce new executors to Python


def active_session() -> Classic | Connect:
    """Return this program's session, or raise a UsageError."""
    import pyspark
    from pyspark.sql.utils import is_remote

    context = pyspark.SparkContext._active_spark_context
    if context is not None and not is_remote():  # a server of Spark Connect may be in this process
        return Classic(context)
    with suppress(ImportError):  # Spark Connect needs grpc
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            return Connect(session)
    raise UsageError("there is no Spark session: make one first, as by SparkSession.builder.getOrCreate()")


class Classic:
    """A session with a driver in this process."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def default_size(self) -> int:
        """Return the number of tasks that Spark itself would choose."""
        return int(self._context.defaultParallelism)

    def is_local(self) -> bool:
        """Return whether the executor is in the driver's JVM, so that its log is the driver's output."""
        return bool(self._context._jsc.sc().isLocal())

    def driver_addresses(self) -> tuple[str, str] | None:
        """Return the address where this process can listen, and the address by which tasks reach it. None: they cannot.

        Executors can reach the driver, but perhaps not at every port.
        """
        conf = self._context.getConf()
        host = conf.get("spark.driver.host").strip("[]")
        return conf.get("spark.driver.bindAddress", host).strip("[]"), host

    def run(self, assignment: Assignment) -> list[TaskReport]:
        """Run the tasks of a job, all at once, and return their reports.

        Ctrl-C, and any other exception that ends this call, cancels the job.

        Raises:
            LaunchError: Spark has no slots for them in time, or the stage failed.
        """
        deadline = time.monotonic() + assignment.start_timeout
        self._wait_for_slots(assignment, deadline)
        size = assignment.size
        with self._tagged(f"distrun.spark.run on {size} ranks") as tag, self._started_by(deadline, tag) as is_late:
            try:
                return self._collect(assignment, tag)
            except Exception as error:
                if not is_late.is_set():
                    raise LaunchError(in_words(str(error))) from None
                raise LaunchError(
                    f"{size} tasks could not start in {assignment.start_timeout:g} s (start_timeout), since other jobs "
                    "have the executors: wait for those, or give Spark more executors or cores"
                ) from None

    def _collect(self, assignment: Assignment, tag: str) -> list[TaskReport]:
        """Run the stage from another thread: Ctrl-C during a call to the JVM would break the call without cancelling
        the job."""
        from pyspark import InheritableThread

        done: Future[list[TaskReport]] = Future()

        def collect() -> None:
            try:
                rows = self._context.parallelize(range(assignment.size), assignment.size).barrier()
                reports = rows.mapPartitions(partial(task.by_rows, assignment)).collect()
                done.set_result([pickle.loads(report) for report in reports])
            except BaseException as error:
                done.set_exception(error)

        thread = InheritableThread(target=collect, daemon=True)
        thread.start()
        try:
            return done.result()
        except KeyboardInterrupt:
            self._context.cancelJobsWithTag(tag)
            thread.join(_CANCEL_TIMEOUT)
            raise

    @contextmanager
    def _tagged(self, description: str) -> Iterator[str]:
        """Give the jobs of this thread, and of the threads that it starts, a tag."""
        context = self._context
        names = ("spark.job.description", "spark.job.interruptOnCancel")
        before = {name: context.getLocalProperty(name) for name in names}
        tag = f"distrun-{secrets.token_hex(4)}"
        context.addJobTag(tag)
        context.setJobDescription(before[names[0]] or description)
        context.setInterruptOnCancel(True)
        try:
            yield tag
        finally:
            context.removeJobTag(tag)
            for name, value in before.items():
                context.setLocalProperty(name, value)

    @contextmanager
    def _started_by(self, deadline: float, tag: str) -> Iterator[threading.Event]:
        """Cancel the job if none of its tasks has started by `deadline`, because other jobs have the slots. Yields the
        event that is set then."""
        is_over, is_late = threading.Event(), threading.Event()

        def watch() -> None:
            pause = deadline - time.monotonic()
            while not is_over.wait(pause):
                pause = _POLL
                # An error here is internal to Spark, or about a job that Spark has not registered yet.
                with suppress(Exception):
                    if not self._has_begun(tag):
                        is_late.set()
                        self._context.cancelJobsWithTag(tag)
                    return

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield is_late
        finally:
            is_over.set()

    def _has_begun(self, tag: str) -> bool:
        """Return whether a task of the job with this tag has started; fail while Spark does not know the job."""
        tracker = self._context._jsc.sc().statusTracker()
        (job,) = tracker.getJobIdsForTag(tag)
        stages = [tracker.getStageInfo(stage).get() for stage in tracker.getJobInfo(job).get().stageIds()]
        return any(stage.numActiveTasks() or stage.numCompletedTasks() for stage in stages)

    def _wait_for_slots(self, assignment: Assignment, deadline: float) -> None:
        """Wait until executors have slots for all tasks at once, since Spark itself checks only every 15 seconds."""
        while (slots := self._slots()) is not None and slots < assignment.size:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the executors have room for {slots} tasks at once, and num_proc={assignment.size} needs as many: "
                    f"none came in {assignment.start_timeout:g} s (start_timeout); ask for fewer, or give Spark more "
                    "executors or cores"
                )
            time.sleep(_POLL)

    def _slots(self) -> int | None:
        """Return how many tasks can run at once, or None if unknown. Spark then raises its own error if they do not
        fit."""
        if self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
            return None
        try:
            jvm = self._context._jsc.sc()
            return int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
        except Exception:  # an internal interface of Spark: without it, Spark's own check remains
            return None


class Connect:
    """A session of Spark Connect, whose driver is elsewhere."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def default_size(self) -> int:
        """See `Classic`."""
        raise UsageError("num_proc is not given, and Spark Connect does not tell how many tasks fit: give num_proc")

    def is_local(self) -> bool:
        """See `Classic`."""
        return False

    def driver_addresses(self) -> tuple[str, str] | None:
        """See `Classic`."""
        return None

    def run(self, assignment: Assignment) -> list[TaskReport]:
        """See `Classic`."""
        size = assignment.size
        rows = self._session.range(0, size, 1, size)  # one partition, and so one task, for each rank
        tag = f"distrun-{secrets.token_hex(4)}"
        self._session.addTag(tag)
        try:
            table = rows.mapInArrow(partial(task.by_batches, assignment), "report binary", barrier=True).collect()
        except KeyboardInterrupt:
            self._session.interruptTag(tag)
            raise
        except Exception as error:
            raise LaunchError(in_words(str(error))) from None
        finally:
            self._session.removeTag(tag)
        return [pickle.loads(bytes(row.report)) for row in table]


def in_words(text: str) -> str:
    """Return the text of an error of Spark as one sentence, without the Java stack trace."""
    if "ModuleNotFoundError" in text and "'distrun" in text:
        return "the executors cannot import distrun: install it for their Python, which PYSPARK_PYTHON names"
    where = re.search(r"\((\S+) executor (\S+)\): ExecutorLostFailure", text)
    lost = re.search(r"ExecutorLostFailure \(executor (\S+).*?Reason: ([^\n]*)", text)
    if lost is not None:
        place = f" on {where[1]}" if where else ""
        return (
            f"executor {lost[1]}{place} was lost while the job ran, and its ranks with it: {lost[2].strip()}; the "
            "other ranks were ended (its log tells more; memory that ran short is the usual reason)"
        )
    if "Python worker exited unexpectedly" in text:
        return "the Python worker of a task was killed or crashed, and its rank with it; the other ranks were ended"
    if re.search(r"cancell?ed", text, re.IGNORECASE):
        return "Spark has cancelled the job: its ranks were ended"
    too_large = re.search(r"maxResultSize|OutOfMemoryError", text)
    remedy = "; results of ranks travel through Spark: return less, or save it" if too_large else ""
    return f"Spark could not run the tasks: {_reason(text)}{remedy}"


def _reason(text: str) -> str:
    """Return the last line before the first Java stack trace, without the common beginning of all errors.

    : org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ...
    java.lang.OutOfMemoryError: Java heap space
        at java.base/java.nio.HeapByteBuffer.<init>(HeapByteBuffer.java:64)
    """
    said = [line.strip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    reason = re.sub(r"^:? ?([a-z]\w*\.)+(?=[A-Z])", "", said[-1] if said else "it does not tell why")
    return re.sub(r"^(SparkException: )?(Job aborted due to stage failure: )?", "", reason)
