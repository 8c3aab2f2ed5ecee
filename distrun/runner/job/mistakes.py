"""Signs that the ranks of a job, which has ended well, have not worked together."""

from __future__ import annotations

import os
import re
import threading

from distrun.runner.planning import python_command
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.protocol.exits import RankExit

_KEPT = 1 << 10  # bytes of each rank's output that are compared
_KNOWS_RANKS = re.compile(
    "distrun|distributed|horovod|mpi4py|rank|world_size|tf_config|strategy|lightning|accelerat|deepspeed|transformers"
    r"|environ|\bray\b",
    re.IGNORECASE,
)


class SilentMistakes:
    """The outputs and exits of ranks, as far as they tell whether the ranks have worked together."""

    def __init__(self) -> None:
        self._outputs: dict[int, bytes] = {}
        self._gradients: dict[int, int] = {}
        self._lock = threading.Lock()
        self._alone = self._plain = self._left = 0

    def output(self, rank: int, data: bytes) -> None:
        """Note what a rank wrote to stdout (an agent's thread)."""
        known = self._outputs.get(rank, b"")
        if len(known) < _KEPT:
            self._outputs[rank] = known + data[:_KEPT]

    def first_gradients(self, plan: LaunchPlan, rank: int, digest: int) -> str | None:
        """Note the digest of a rank's first gradients. Return what the user should be told if all ranks have the same
        one, or None (an agent's thread).
        """
        with self._lock:
            self._gradients[rank] = digest
            if plan.is_elastic or len(self._gradients) < plan.size or len(set(self._gradients.values())) > 1:
                return None
        return (
            "all ranks had the same gradients in the first two steps, so they train on the same samples: give each its "
            "share, by a DistributedSampler, distrun.data.shard or random numbers that depend on rank()"
        )

    def exited(self, end: RankExit) -> None:
        """Note the end of a rank."""
        self._alone += end.worked_alone
        self._plain += end.has_departed

    def left_behind(self, processes: int) -> None:
        """Note the number of processes that ranks of a host have left running, and that were ended."""
        self._left += processes

    def sentence(self, plan: LaunchPlan) -> str | None:
        """Return what the user should be told at the end of a job that has not failed, or None."""
        if plan.servers or plan.is_elastic:
            return None
        if self._plain == plan.size and self._left:
            return (
                f"the ranks exited with code 0 while processes of theirs were running ({self._left}), which ended with "
                "the job: a script must not go on in the background (as a daemon, by nohup or &)"
            )
        if plan.size < 2:
            return None
        if self._alone == plan.size:
            return (
                "the ranks have called init() and exchanged no results, so each has worked alone: to train together, "
                "wrap the optimizer in DistributedOptimizer, or use allreduce()"
            )
        if self._plain < plan.size or len(self._outputs) < plan.size:
            return None
        script = python_command.program(plan.agents[0].command)
        one, *others = (output[:_KEPT] for output in self._outputs.values())
        if not script or any(other != one for other in others) or _knows_ranks(plan, script):
            return None
        return (
            f"{script} ran {plan.size} times with the same output, since nothing in it lets ranks train together: "
            "distrun --auto=explain tells how it can"
        )


def _knows_ranks(plan: LaunchPlan, script: str) -> bool:
    """Whether the script mentions ranks or a library for them, or cannot be read."""
    try:
        with open(os.path.join(plan.agents[0].wdir, script), errors="replace") as file:
            return _KNOWS_RANKS.search(file.read()) is not None
    except OSError:
        return True
