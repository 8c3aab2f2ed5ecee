"""Regrouping: the functions that the layers above call when an elastic job begins a new generation.

`distrun.elastic.run` is the usual caller. A script that does not use it can do the same by hand.
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
    """Whether the launcher can regroup this process, because there is a control channel."""
    return world.is_elastic()


def enroll() -> None:
    """Tell the launcher that this process can continue in the next generation. Only the first call has an effect.

    It also marks the numberings: what the script creates later is numbered again in each generation.

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
    """Tell the launcher what spares should import, when a script that does not enrol has trained for a step.

    The first step is the right time because some modules are imported late, and because a script that uses
    torch.distributed never joins. Does nothing in jobs that are not elastic.
    """
    opened = channel()
    if opened is not None and not _is_enrolled:
        opened.send(Imported(imported(), is_training=True))


def planned() -> str | None:
    """Return why the present generation is to be left at the next step boundary, or None if it is not."""
    opened = channel()
    return None if opened is None else opened.planned


def rejoin(reason: str) -> None:
    """Leave the present generation, in any state, and join the next one. Returns when all its ranks have joined.

    Operations under way fail. Numberings go back to their state at `enroll`, and process sets are registered again.

    `reason` is the text of the error that this rank has got, or of `planned`.

    Raises:
        UsageError: the job is not elastic.
        LaunchError: the launcher is gone.
    """
    _channel()
    while True:
        numbering.rewind()
        try:
            world.enter_next(reason)
        except JobAbortedError as error:  # a rank was lost again before all had joined
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
