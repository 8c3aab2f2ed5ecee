"""Regrouping: what the layers above call when an elastic job begins a new generation.

`distrun.elastic.run` is the caller; a script that does without it can do the same by hand.
"""

from __future__ import annotations

from distrun.contract.elastic.channel import Channel, channel
from distrun.contract.elastic.imports import imported
from distrun.contract.elastic.messages import Enrolled, Finished, Imported
from distrun.errors import JobAbortedError, UsageError
from distrun.runtime.operations import numbering
from distrun.runtime.world import world

_is_enrolled = False


def is_elastic() -> bool:
    """Whether the launcher can regroup this process: there is a control channel."""
    return world.is_elastic()


def enroll() -> None:
    """Tell the launcher that this process can go on in the next generation. Once per process; later calls do nothing.

    Numberings are marked here: what the script makes later is numbered again in each generation.

    Raises:
        UsageError: the job is not elastic.
        LaunchError: the launcher is gone.
    """
    global _is_enrolled
    if not _is_enrolled:
        _is_enrolled = True
        numbering.mark()
        _channel().send(Enrolled(imported()))


def show_imports() -> None:
    """Tell the launcher what spares should import, once a script that does not enrol has trained for a step.

    Some modules are imported late, and a script of torch.distributed never joins. Does nothing in other jobs.
    """
    opened = channel()
    if opened is not None and not _is_enrolled:
        opened.send(Imported(imported(), is_training=True))


def planned() -> str | None:
    """Return why the present generation is to be left at the next step boundary; None: it is not."""
    opened = channel()
    return None if opened is None else opened.planned


def rejoin(reason: str) -> None:
    """Leave the present generation, in whatever state it is, and join the next; returns when all its ranks have met.

    Operations under way fail. Numberings go back to where they were at `enroll`, process sets are made again.

    Args:
        reason: why: the text of the error that this rank has met, or of `planned`.

    Raises:
        UsageError: the job is not elastic.
        LaunchError: the launcher is gone.
    """
    _channel()
    while True:
        numbering.rewind()
        try:
            world.enter_next(reason)
        except JobAbortedError as error:  # somebody is gone already, again
            reason = str(error)
        else:
            return


def finish() -> None:
    """Tell the launcher that the training is over on all ranks: no generation follows.

    Raises:
        UsageError: the job is not elastic.
        LaunchError: the launcher is gone.
    """
    _channel().send(Finished())


def _channel() -> Channel:
    opened = channel()
    if opened is None:
        raise UsageError("this job cannot be regrouped: start it with `distrun --elastic`")
    return opened
