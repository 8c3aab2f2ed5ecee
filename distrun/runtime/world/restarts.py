"""The number of times that the ranks of this job were restarted."""

from __future__ import annotations

import os

from distrun.errors import UsageError

_VARIABLES = ("DISTRUN_RESTART", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""The variables of distrun's launcher, of torchrun, and of a job that Slurm has requeued. The first one set counts."""


def restart_count() -> int:
    """Return how often the job, or its ranks, had been restarted when this process started. 0 in the first run.

    It is known before `init`. A rank that survives a regrouping of an elastic job was not restarted.

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
