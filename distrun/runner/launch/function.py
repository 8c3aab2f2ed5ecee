"""`distrun.run`: runs a function on every rank and returns the results, within a Python program.

Function and results are pickled by cloudpickle and travel through the agents' pipes, without files or a network.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from distrun.errors import LaunchError, UsageError
from distrun.runner.command_lines.keywords import Keywords
from distrun.runner.command_lines.request import launch_request
from distrun.runner.job.calls import pickled_call, raise_sent, result_of
from distrun.runner.job.options import Outcome
from distrun.runner.launch.launch import Launch
from distrun.runner.output.sinks import DescriptorSink, Sink, TextSink, is_own
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.shipping.options import check_shipping

Result = TypeVar("Result")

_WORKER = Path(__file__).parents[1] / "agent" / "function_worker.py"
_IN_SSH_OPTIONS = ("ssh_port", "ssh_identity_file", "ssh_option", "ssh_accept_new", "python")


def run(
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    live: bool = False,
    report: str | Path | None = None,
    timeline: str | Path | None = None,
    ssh: SshOptions | None = None,
    **options: Any,
) -> list[Result]:
    """Call `function(*args, **kwargs)` once per rank, each in its own process, and return the results in rank order.

    Unlike with `multiprocessing`, functions of notebooks, closures and lambdas work: cloudpickle pickles them by value.
    Unlike with `horovod.run`, an exception of a rank is raised here as the original object.

    Args:
        function, args, kwargs: the call, the same on every rank. It may use `distrun.init()` and the rest of distrun.
        np: the number of ranks. None = all slots of the hosts, as on the command line.
        hosts: the hosts and their slots, as in `"a:4,b:4"`. None = this machine, or the allocation of a cluster.
        env: variables for the ranks, in addition to this process's.
        timeout: the seconds after which the job is ended.
        live: whether it is shown while the job runs how fast each rank is and for whom it waits: below the output in a
            terminal, elsewhere as a line every 30 s.
        report: the file for a page of HTML about where the time went.
        timeline: the file for what all ranks did when, which ui.perfetto.dev opens.
        ssh: options for reaching other hosts, and the Python that calls the function there.
        options: any other option of `distrun`, by its name without dashes at the beginning, and with _ for others:
            `output_dir="logs"`, `elastic=True`, `min_np=2`, `ship=".", bootstrap="requirements.txt"`,
            `tag_output=False`. What takes several values takes a list. Not offered are the options that concern a
            command, mpirun or a launcher on each node.

    With `elastic` or an option that implies it, a rank that fails is replaced, and the results come from the ranks that
    run at the end.

    Raises:
        UsageError: the request cannot be met.
        LaunchError: a rank ended without a result, or raised an exception that cannot be unpickled here.
        KeyboardInterrupt: the user pressed Ctrl-C. The ranks have ended.
        Exception: the exception of the first rank that failed, with a `RemoteTraceback` as its cause.
    """
    _check_arguments(function, args, np)
    # After sys.path, so that the worker can import the modules of the call.
    call = pickle.dumps(sys.path) + pickled_call(function, tuple(args), dict(kwargs or {}))
    keywords = Keywords()
    named = {"np": np, "hosts": hosts, "timeout": timeout, "live": live, "report": report, "timeline": timeline}
    chosen = keywords.options({**named, **options})
    chosen["command"] = (sys.executable, str(_WORKER))
    chosen["exports"] = tuple(f"{name}={value}" for name, value in (env or {}).items())
    chosen["quiet"] = not chosen["verbose"]
    if ssh is not None:
        _check_ssh(options)
        chosen["keepalive"] = ssh.keepalive if chosen["keepalive"] is None else chosen["keepalive"]
    with keywords.in_errors():
        check_shipping(chosen)
        job = Launch(chosen, launch_request(chosen), ssh).job(_sink(sys.stdout), _sink(sys.stderr), call)
    outcome = job.run()
    if outcome.interrupted_by is not None:
        _interrupt(outcome.interrupted_by)
    if outcome.failure is not None:
        _raise(outcome)
    return [result_of(rank, outcome.results) for rank in range(outcome.size)]


def _check_arguments(function: object, args: object, np: object) -> None:
    if not callable(function):
        raise UsageError(f"{function!r} cannot be called: give a function, and its arguments as args=(...)")
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(
            f"args={args!r} is not a sequence: give the function's arguments as a tuple, as in run(f, (1, 2), np=2)"
        )
    if not (np is None or (isinstance(np, int) and np >= 1)):
        raise UsageError(f"np={np!r} is not a number of ranks: give 1 or more, or None for all slots")


def _check_ssh(options: Mapping[str, Any]) -> None:
    if twice := [name for name in _IN_SSH_OPTIONS if name in options]:
        raise UsageError(f"ssh and {twice[0]}={options[twice[0]]!r} exclude each other: give one of them")


def _sink(stream: TextIO) -> Sink:
    """Return a sink for the present sys.stdout or sys.stderr, which notebooks and pytest replace."""
    stream.flush()
    return DescriptorSink(stream.fileno()) if is_own(stream) else TextSink(stream)


def _interrupt(signum: int) -> NoReturn:
    """Raise the signal that ended the job in this process, as if the job had not caught it."""
    signal.raise_signal(signum)
    raise LaunchError(f"the job was ended by {signal.Signals(signum).name}")


def _raise(outcome: Outcome) -> NoReturn:
    assert outcome.failure is not None
    rank = outcome.failure.rank
    if rank is None or rank not in outcome.results:
        raise LaunchError((outcome.failure_report or outcome.failure.what).removeprefix("distrun: "))
    raise_sent(rank, outcome.results[rank])
