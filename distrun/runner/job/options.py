"""The interface of a job: its options and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distrun.runner.decisions.failure import Failure
from distrun.runner.output.printer import Style
from distrun.runner.planning.request import GRACE
from distrun.runner.planning.ssh_config import SshOptions

if TYPE_CHECKING:
    from distrun.runner.observation.consumer import Consumer
    from distrun.runner.output.panel import Panel
    from distrun.runner.planning.plan import LaunchPlan
    from distrun.runner.shipping.delivery import Delivery


@dataclass(frozen=True)
class JobOptions:
    """The options that are not part of the plan, because they concern this process only."""

    grace: float = GRACE
    """Seconds between SIGTERM and SIGKILL."""
    start_timeout: float = 60.0
    style: Style = field(default_factory=Style)
    output_dir: str | None = None
    stdin: int | None = None
    verbose: bool = False
    timeout: float | None = None
    """Seconds after which the job is ended. None = never."""
    bindings: bool = False
    """Whether the CPUs that ranks are bound to are printed."""
    notes: bool = True
    """Whether the plan's notes are printed."""
    ssh: SshOptions = field(default_factory=SshOptions)
    delivery: Delivery | None = None
    """The things that are brought to other hosts. None = only distrun itself, where it is missing."""
    function: bytes | None = None
    """The pickled function of `distrun.run`. None = the ranks run the plan's command."""

    observers: tuple[Callable[[LaunchPlan, Callable[[str], None]], Consumer], ...] = ()
    """Functions that make the job's observers, from the plan and the function that prints a line. Empty = none."""
    panel: Panel | None = None
    """An observer's lines at the bottom of the terminal."""

    @property
    def is_embedded(self) -> bool:
        """Whether the launcher runs inside another program, which has called `distrun.run`."""
        return self.function is not None


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job."""

    status: int
    """The exit status for `distrun`."""
    failure: Failure | None
    failure_report: str | None
    interrupted_by: int | None
    results: dict[int, bytes] = field(repr=False)
    """The bytes that each rank sent through its result pipe."""
    size: int
    """The number of ranks at the end."""
