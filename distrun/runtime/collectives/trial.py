"""Trials of a sweep (`distrun sweep`): a script reports its metric, and may be pruned.

Rank 0's value goes to the launcher over the control channel. If trials are pruned, the launcher answers each report of
rank 0 with a verdict for all ranks. Each rank waits in its own call of `report` for the verdict with the number of this
call. So all ranks end in the same call, even if they do not communicate with each other at all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any

from distrun.contract.elastic.messages import Report, Verdict, decode, encode
from distrun.contract.elastic.variables import TRIAL, TRIAL_FD, TRIAL_PRUNES
from distrun.errors import LaunchError, UsageError

log = logging.getLogger("distrun")
_LONGEST = 1 << 17  # the largest message, in bytes. Verdicts are short


class TrialPruned(SystemExit):
    """This trial of a sweep has been ended early: raised by `distrun.report`, on all ranks in the same call.

    It is a `SystemExit` with status 0, so a script need not handle it. A script that catches it, to save something for
    example, should end soon.
    """


def report(value: Any, step: float | None = None) -> None:
    """Report the metric of this trial of a sweep. Outside of `distrun sweep` it does nothing.

    All ranks call it equally often, after each epoch for example. Only rank 0's value counts. If the ranks' values
    differ, reduce them first with `allreduce`. Rank 0 may also call it alone: when such a trial is pruned, the launcher
    ends the other ranks with SIGTERM.

    Without `--prune` it returns at once. With `--prune` it waits for the launcher's answer, about a millisecond.

    Args:
        value: the metric: a number, or an array or tensor with a single element. NaN and infinity count as worse than
            every number.
        step: what the value belongs to, such as the epoch, for plots. None: the number of this call, from 1.

    Raises:
        TrialPruned: the trial ends here, on all ranks.
        UsageError: `value` or `step` is not a number.
        LaunchError: the launcher is gone.
    """
    if TRIAL in os.environ:
        _present().report(_number(value, "value"), None if step is None else _number(step, "step"))


class _Trial:
    """This process as a rank of a trial."""

    def __init__(self, channel: socket.socket | None, is_first: bool, is_pruned: bool) -> None:
        """`channel` is None if it is not open in this process. `is_first`: this is rank 0, whose values count."""
        self._channel = channel
        self._is_first = is_first
        self._is_pruned = is_pruned
        self._reports = 0
        self._verdict = Verdict(0, True)

    def report(self, value: float, step: float | None) -> None:
        self._reports += 1
        if self._channel is None:
            return
        if self._is_first:
            message = Report(self._reports, value, self._reports if step is None else step)
            try:
                self._channel.send(encode(message))
            except OSError as error:
                raise LaunchError(f"the launcher of the sweep is gone ({error.strerror})") from None
        if self._is_pruned:
            self._await_verdict(self._channel)
            if not self._verdict.goes_on:
                raise TrialPruned

    def _await_verdict(self, channel: socket.socket) -> None:
        while self._verdict.goes_on and self._verdict.number < self._reports:
            data = channel.recv(_LONGEST)
            if not data:
                raise LaunchError("the launcher of the sweep is gone, or the agent on this host")
            message = decode(data)
            if isinstance(message, Verdict):
                self._verdict = message


_trial: _Trial | None = None


def _present() -> _Trial:
    global _trial
    if _trial is None:
        environ = os.environ
        _trial = _Trial(_channel(), environ.get("DISTRUN_RANK", "0") == "0", environ.get(TRIAL_PRUNES) == "1")
    return _trial


def _channel() -> socket.socket | None:
    """Open the control channel. None, with a warning, if a program between launcher and this process has closed it."""
    with contextlib.suppress(ValueError, OSError):
        channel = socket.socket(fileno=int(os.environ.get(TRIAL_FD, "")))
        if (channel.family, channel.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            channel.set_inheritable(False)
            return channel
        channel.detach()  # the descriptor was reused by something else, so it must stay open
    log.warning(
        "distrun.report reaches nobody: a program between the launcher and this process has closed its descriptors; "
        "start the script directly, or by exec"
    )
    return None


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # frameworks raise different types
        raise UsageError(
            f"distrun.report was given the {name} {value!r:.100}, which is no single number ({error}): give a number, "
            "or an array or tensor with one element"
        ) from None
