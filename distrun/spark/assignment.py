"""A task's assignment and its report, as plain data that Spark carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Assignment:
    """The job of all tasks."""

    size: int
    """The number of ranks, one for each task."""
    key: bytes = field(repr=False)
    """The secret by which the processes of the job authenticate each other. Spark transports it, as safely as its own
    data."""
    call: bytes = field(repr=False)
    """The function and its arguments, pickled by cloudpickle."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the ranks, which may be secrets."""
    driver: tuple[str, int] | None = None
    """The address where the driver listens for the output of the ranks. None: the output comes with the report."""
    is_logged: bool = True
    """Whether the output is written to the logs of the executors too."""
    start_timeout: float = 600.0
    tags: bool = True
    timestamps: bool = False
    network: str = ""
    """The interfaces and subnets for the ranks of other hosts. Empty: Spark's address of each host."""


@dataclass(frozen=True)
class TaskAssignment:
    """A task's place among the others, for its agent's process."""

    index: int
    address: str
    """The address of task 0's host."""
    port: int
    """The port where the process of task 0 listens."""
    listener: int | None
    """On task 0, the descriptor of the socket that listens there."""
    report: int
    """The descriptor of a pipe for the report."""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskReport:
    """The end of a task."""

    index: int
    host: str = ""
    status: int = 1
    failure: str = ""
    """The text about the first failure, empty if there is none."""
    failed_rank: int | None = None
    is_usage_error: bool = False
    results: Mapping[int, bytes] = field(default_factory=dict)
    """On task 0, the results of all ranks. See `runner.job.options.Outcome`."""
    size: int = 0
    stdout: bytes = b""
    """On task 0, the last output of the ranks that was not sent to the driver live."""
    stderr: bytes = b""
