"""How often the ranks of this job have been started again."""

from __future__ import annotations

import os

from distrun.errors import UsageError

_VARIABLES = ("DISTRUN_RESTART", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""The variables of our launcher, of torchrun and of a job that Slurm has put back into its queue. The first that is set
counts."""


def restart_count() -> int:
    """Return how often the job, or its ranks, were started again before this process; 0 in the first run.

    It is known before `init`. A rank that goes on through a regrouping of an elastic job was not started again.

    Raises:
        UsageError: the launcher's variable is not a whole number.
    """
    for variable in _VARIABLES:
        text = os.environ.get(variable)
        if text:
            if not (text.isascii() and text.isdecimal()):
                raise UsageError(f"{variable}={text!r} is not a whole number >= 0: let the launcher set it")
            return int(text)
    return 0
