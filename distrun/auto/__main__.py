"""A rank of a job in zero-line mode: `python -m distrun.auto MODE script.py args`.

MODE is `global`, `scale` or `explain`: see `distrun.auto.job` and `distrun.auto.explaining`.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from distrun.errors import DistrunError, UsageError

_STALL_TIMEOUT = "600"  # seconds that ranks wait for one that does something else, unless the user has set it
_USAGE = "usage: distrun --auto[=global|scale|explain] [OPTIONS] python script.py [ARGS] (or python -m module [ARGS])"


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name, and return the exit status."""
    if len(arguments) < 2 or arguments[0] not in ("global", "scale", "explain"):
        print(f"distrun.auto: {_USAGE}", file=sys.stderr)
        return 2
    mode, program = arguments[0], arguments[1:]
    if program[0] == "-c" or (program[0] == "-m" and len(program) < 2):
        print(f"distrun.auto: {program[0]!r} is no script: {_USAGE}", file=sys.stderr)
        return 2
    if mode == "explain":
        from distrun.auto.explaining import explain

        return explain(program)
    from distrun.auto import job, output, running
    from distrun.contract.settings import STALL_TIMEOUT

    job.current.mode = mode
    job.current.script = program[1] if program[0] == "-m" else program[0]
    if not os.environ.get(STALL_TIMEOUT):
        os.environ[STALL_TIMEOUT] = _STALL_TIMEOUT
    _begin(program)
    try:
        _run(program)
    except Exception as error:
        if job.current.has_failed(error.__traceback__) and not isinstance(error, DistrunError):
            _refuse_step(error)
        # as the interpreter does it, but without distrun's frames in the traceback
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, running.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        output.speak()
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _begin(program: list[str]) -> None:
    """Join the job and prepare this process for the program, or prepare it to rehearse the program."""
    import distrun
    from distrun.auto import files, frameworks, job, output, rehearsal, source

    forked = rehearsal.fork() if job.current.mode == "global" and rehearsal.is_needed() else None
    if isinstance(forked, rehearsal.RehearsingProcess):
        job.current.is_copy, job.current.rehearsing = True, forked
        job.current.begin_random(forked.seed())
    else:
        job.current.rehearsal = forked
        distrun.init()
        if distrun.size() == 1:
            return
        source.check(program)
        job.current.begin_random()
        if forked is not None:
            device = distrun.device()
            forked.begin(job.current.seed, device.index if device.name == "cuda" else None)
    if job.current.is_silent:
        output.mute()
        files.keep_private()
    frameworks.watch()


def _refuse_step(error: Exception) -> NoReturn:
    """Refuse a script because of an error that it has raised on a part of a batch, but not on the whole batch."""
    from distrun.auto.refusing import refuse

    frames = traceback.extract_tb(error.__traceback__)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    of_script = [each for each in frames if "site-packages" not in each.filename and not each.filename.startswith(own)]
    place = (of_script or frames)[-1]
    text = traceback.format_exception_only(error)[-1].strip()
    refuse(
        "a step that works on a whole batch fails on a part of it, as if each batch had to have the same number of "
        f"samples: {text} ({os.path.basename(place.filename)}:{place.lineno})",
        (
            "count = x.size(0)  # instead of a constant number of samples",
            "distrun --auto=scale ...  # each rank trains on batches of its own, as with DDP",
        ),
    )


def _run(program: list[str]) -> None:
    from distrun.auto import job, running

    try:
        running.run(program)
        if job.current.end_copy is not None:
            job.current.end_copy()
    finally:
        if job.current.is_copy:  # the tried step has failed, or was never begun
            os._exit(1)
        if job.current.rehearsal is not None:
            job.current.rehearsal.end()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"distrun --auto: {error}")
