"""Failures: whether a trial has failed, and whether a sweep ends because too many have."""

from __future__ import annotations

from collections.abc import Iterable

from distrun.runner.decisions.failure import Failure
from distrun.tools.sweep.policy.trials import State, Trial

_SAME_FAILURES = 3  # trials: if the first ones to end all fail alike, the command is wrong
_NO_VALUE = (
    "reported no value: call distrun.report(value) in the script, or name what it prints by --metric, as in --metric "
    "loss for loss=0.123"
)


def judge(trial: Trial, needs_value: bool) -> None:
    """Set the final state of a trial without ranks and, if it has failed, its failure.

    With `needs_value`, a trial without a value has failed.
    """
    if trial.is_pruned:
        trial.state, trial.failure = State.PRUNED, None
        return
    if trial.failure is None and needs_value and trial.value is None:
        trial.failure = Failure(None, 1, _NO_VALUE)
    trial.state = State.COMPLETE if trial.failure is None else State.FAILED


def too_many(trials: Iterable[Trial], ended: int, most: int | None) -> str | None:
    """Return why a sweep ends early because of failures. None: it does not.

    `ended` trials have ended in this run, and the user allows `most` failed ones (None: any, unless the first few all
    fail alike).
    """
    failed = [trial for trial in trials if trial.state is State.FAILED]
    if most is not None:
        return f"{len(failed)} trials have failed" if len(failed) > most else None
    kinds = {trial.failure.what for trial in failed if trial.failure is not None}
    if ended == len(failed) >= _SAME_FAILURES and len(kinds) == 1:
        return (
            f"the first {len(failed)} trials have all failed alike, so the others would too; --max-failures N goes on "
            "in spite of N failures"
        )
    return None
