"""`distrun.run`: runs a function on every rank and returns the results, within a Python program.

Function and results are pickled by cloudpickle and travel through the agents' pipes, without files or a network.
"""

from __future__ import annotations

import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from distrun.errors import LaunchError, UsageError
from distrun.runner.job.calls import pickled_call, raise_sent, result_of
from distrun.runner.job.job import Job
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.output.printer import Style
from distrun.runner.output.sinks import DescriptorSink, Sink, TextSink
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.prepare import chosen_settings, prepare, read_hostfile
from distrun.runner.planning.request import LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.shipping.options import LONG_START_TIMEOUT

if TYPE_CHECKING:
    from distrun.runner.shipping.delivery import Delivery

Result = TypeVar("Result")

# Sentences about the command line: "-np 3 asks for more ranks than", "--hosts-from 'a b' cannot be executed".
_OPTION = re.compile(r"(?<![\w-])(?<!distrun doctor )--?([a-zA-Z][a-z-]*)(?: (\d[\d.]*|'[^']*'))?")
_WORKER = Path(__file__).parents[1] / "agent" / "function_worker.py"


def run(
    function: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    env: Mapping[str, str] | None = None,
    slots: int | None = None,
    oversubscribe: bool = False,
    share_gpus: bool = False,
    ssh: SshOptions | None = None,
    wdir: str | None = None,
    output_dir: str | None = None,
    tag_output: bool = True,
    start_timeout: float | None = None,
    timeout: float | None = None,
    grace: float = 30.0,
    stall_warning: float | None = None,
    stall_timeout: float | None = None,
    openmpi_env: bool = False,
    horovod: bool = False,
    verbose: bool = False,
    elastic: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
    hosts_from: str | None = None,
    spares: int = 0,
    max_restarts: int | None = None,
    restart_window: float | None = None,
    reset_limit: int | None = None,
    cooldown: tuple[float, float] | None = None,
    elastic_timeout: float | None = None,
    ship: str | Sequence[str] = (),
    bootstrap: str | bool = False,
) -> list[Result]:
    """Call `function(*args, **kwargs)` once per rank, each in its own process, and return the results in rank order.

    Unlike with `multiprocessing`, functions of notebooks, closures and lambdas work: cloudpickle pickles them by value.
    Unlike with `horovod.run`, an exception of a rank is raised here as the original object.

    Args:
        function, args, kwargs: the call, the same on every rank. It may use `distrun.init()` and the rest of distrun.
        np: the number of ranks. None = all slots of the hosts, as on the command line.
        env: variables for the ranks, in addition to this process's.
        ssh: options for reaching other hosts, and the Python that calls the function there.
        horovod: whether `import horovod` gives distrun in the ranks.
        ship: a folder, or several, that are brought to other hosts first. Modules in them can be imported there.
        bootstrap: whether ranks on other hosts run in an environment that is created there. A string gives its
            requirements.
        hosts and the rest: like the options of `distrun` of the same name. `elastic` and the nine after it make the job
            elastic: a rank that fails is replaced, and the results come from the ranks that run at the end.

    Raises:
        UsageError: the request cannot be met.
        LaunchError: a rank ended without a result, or raised an exception that cannot be unpickled here.
        KeyboardInterrupt: the user pressed Ctrl-C. The ranks have ended.
        Exception: the exception of the first rank that failed, with a `RemoteTraceback` as its cause.
    """
    _check_arguments(function, args, np)
    if start_timeout is None:
        start_timeout = 60.0 if bootstrap is False else LONG_START_TIMEOUT
    request = LaunchRequest(
        command=(sys.executable, str(_WORKER)),
        np=np,
        hosts=tuple(_hosts(hosts, hostfile)),
        exports=tuple(f"{name}={value}" for name, value in (env or {}).items()),
        wdir=wdir,
        slots=slots,
        oversubscribe=oversubscribe,
        share_gpus=share_gpus,
        openmpi_env=openmpi_env,
        horovod=horovod,
        stall_warning=stall_warning,
        stall_timeout=stall_timeout,
        start_timeout=start_timeout,
        keepalive=None if ssh is None else ssh.keepalive,
    )
    ssh = ssh or SshOptions(keepalive=chosen_settings(request).keepalive)
    options = JobOptions(
        grace=grace,
        start_timeout=start_timeout,
        timeout=timeout,
        style=Style(tag_output),
        output_dir=output_dir,
        verbose=verbose,
        notes=verbose,
        ssh=ssh,
        # After sys.path, so that the worker can import the modules of the call.
        function=pickle.dumps(sys.path) + pickled_call(function, tuple(args), dict(kwargs or {})),
    )
    limits = {
        "min_np": min_np,
        "max_np": max_np,
        "hosts_from": hosts_from,
        "spares": spares,
        "max_restarts": max_restarts,
        "restart_window": restart_window,
        "reset_limit": reset_limit,
        "cooldown": cooldown,
        "elastic_timeout": elastic_timeout,
    }
    is_elastic = elastic or any(limits.values())
    options = replace(options, delivery=_delivery(ship, bootstrap, is_elastic))
    with _errors_about_arguments():
        job = _job(request, limits if is_elastic else None, options)
    outcome = job.run()
    if outcome.interrupted_by is not None:
        _interrupt(outcome.interrupted_by)
    if outcome.failure is not None:
        _raise(outcome)
    return [result_of(rank, outcome.results) for rank in range(outcome.size)]


def _delivery(ship: str | Sequence[str], bootstrap: str | bool, is_elastic: bool) -> Delivery | None:
    """Return the delivery to other hosts, or None without `ship` and `bootstrap`."""
    if not ship and bootstrap is False:
        return None
    from distrun.runner.shipping.options import deliver

    ships = (ship,) if isinstance(ship, str) else ship
    with _errors_about_arguments():
        wanted = None if bootstrap is False else "" if bootstrap is True else bootstrap
        return deliver(ships, wanted, hosts_may_come=is_elastic)


def _job(request: LaunchRequest, limits: Mapping[str, Any] | None, options: JobOptions) -> Job:
    """Return the job, which is elastic if there are `limits`."""
    if limits is None:
        plan = prepare(request, options.grace, options.ssh)
        return Job(plan, options, _sink(sys.stdout), _sink(sys.stderr))
    from distrun.runner.elastic.job import ElasticJob
    from distrun.runner.elastic.preparation import ElasticRequest, prepare_elastic

    elastic = prepare_elastic(request, ElasticRequest(**limits), options.grace, options.ssh)
    return ElasticJob(elastic, options, _sink(sys.stdout), _sink(sys.stderr))


@contextmanager
def _errors_about_arguments() -> Iterator[None]:
    """Replace options of the command line in errors by arguments of `run`."""
    try:
        yield
    except UsageError as error:
        raise UsageError(_OPTION.sub(_as_argument, str(error))) from None


def _as_argument(option: re.Match[str]) -> str:
    """Return `np=3` for `-np 3` and `np` for `-np`. Options that are not arguments of `run` stay."""
    name = {"H": "hosts", "x": "env"}.get(option[1], option[1].replace("-", "_"))
    defaults = run.__kwdefaults__ or {}
    if name not in defaults:
        return option[0]
    value = "True" if option[2] is None and defaults[name] is False else option[2]
    return name if value is None else f"{name}={value}"


def _hosts(listed: str | None, file: str | None) -> list[Host]:
    if listed is not None:
        return parse_host_list(listed)
    return read_hostfile(file) if file is not None else []


def _check_arguments(function: object, args: object, np: object) -> None:
    if not callable(function):
        raise UsageError(f"{function!r} cannot be called: give a function, and its arguments as args=(...)")
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise UsageError(
            f"args={args!r} is not a sequence: give the function's arguments as a tuple, as in run(f, (1, 2), np=2)"
        )
    if not (np is None or (isinstance(np, int) and np >= 1)):
        raise UsageError(f"np={np!r} is not a number of ranks: give 1 or more, or None for all slots")


def _sink(stream: TextIO) -> Sink:
    """Return a sink for the present sys.stdout or sys.stderr, which notebooks and pytest replace."""
    stream.flush()
    if stream in (sys.__stdout__, sys.__stderr__):
        return DescriptorSink(stream.fileno())
    return TextSink(stream)


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
