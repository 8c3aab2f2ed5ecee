"""The process of a task: the launcher on task 0, a joining host on the others. Its rank is its child."""

from __future__ import annotations

import pickle
import signal
import socket
import sys

import distrun
from distrun.errors import DistrunError, UsageError
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.launch.joined import launch, this_host
from distrun.runner.output.printer import Style
from distrun.runner.planning.request import LaunchRequest
from distrun.spark.assignment import Assignment, TaskAssignment, TaskReport

_SHARE_BY_OPTION = "list more, lower its slots, or give --share-gpus"
_SHARE_ON_SPARK = (
    "have executors of one host list different ones, set spark.task.resource.gpu.amount to 1 or more, or share them by "
    "DISTRUN_SHARE_GPUS=1 in env"
)


def main() -> None:
    """Read the assignments of the job and the task from stdin, run the job to its end, and write the report into its
    pipe."""
    assignment, place = pickle.load(sys.stdin.buffer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a driver on this machine: Spark tells tasks when they are over
    try:
        report = _report(place, _launch(assignment, place))
    except DistrunError as error:
        failure = str(error).replace(_SHARE_BY_OPTION, _SHARE_ON_SPARK)
        report = TaskReport(place.index, failure=failure, is_usage_error=isinstance(error, UsageError))
    with open(place.report, "wb") as pipe:
        pickle.dump(report, pipe)


def _launch(assignment: Assignment, place: TaskAssignment) -> Outcome:
    listeners = () if place.listener is None else (socket.socket(fileno=place.listener),)
    endpoint = JoinEndpoint(
        (place.address, place.port), assignment.key, assignment.start_timeout, listeners=listeners, rejoins=False
    )
    member = this_host(place.index, assignment.size, 1, gpus=place.gpus)
    network = {"DISTRUN_NETWORK": assignment.network} if assignment.network else {}
    request = LaunchRequest(
        (sys.executable, "-c", ""),  # the agent runs the function instead
        exports=tuple(f"{name}={value}" for name, value in {**network, **assignment.env}.items()),
        horovod=assignment.env.get("DISTRUN_HOROVOD") == "1",
        share_gpus=assignment.env.get("DISTRUN_SHARE_GPUS") == "1",
        start_timeout=assignment.start_timeout,
    )
    options = JobOptions(
        start_timeout=assignment.start_timeout,
        style=Style(assignment.tags, timestamps=assignment.timestamps),
        notes=False,
        function=pickle.dumps(sys.path) + assignment.call,
    )
    return launch(endpoint, member, request, lambda *_: options, _say)


def _report(place: TaskAssignment, outcome: Outcome) -> TaskReport:
    failure = outcome.failure
    return TaskReport(
        place.index,
        status=outcome.status,
        failure=outcome.failure_report or (failure.what if failure else ""),
        failed_rank=failure.rank if failure else None,
        results=outcome.results,
        size=outcome.size,
    )


def _say(text: str) -> None:
    print(f"distrun {distrun.__version__}: {text}", file=sys.stderr, flush=True)
