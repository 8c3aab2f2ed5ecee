"""The program that a cluster manager starts on each host: the launcher on the first, a joining host on the others."""

from __future__ import annotations

import errno
import importlib.util
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from distrun.errors import DistrunError, LaunchError, UsageError
from distrun.host.connections.listener import listen
from distrun.host.endpoints import format_endpoint
from distrun.runner.decisions import events, signals
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.join import join
from distrun.runner.hosts.joining.joined_agent import JoinedStarter
from distrun.runner.hosts.joining.listener import InterruptedByError, JoinListener
from distrun.runner.hosts.joining.messages import End, Member
from distrun.runner.hosts.joining.planning import plan_of
from distrun.runner.job.job import Job
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.output.sinks import DescriptorSink, Sink
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.prepare import check_plan, checked, chosen_settings, launch_context
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.system import machine

if TYPE_CHECKING:
    from distrun.runner.elastic.preparation import ElasticRequest


def launch(
    endpoint: JoinEndpoint,
    member: Member,
    request: LaunchRequest,
    make_options: Callable[[LaunchPlan, int], JobOptions],
    say: Callable[[str], None],
    *,
    grace: float = 5.0,
    elastic: ElasticRequest | None = None,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
) -> Outcome:
    """Run a job of which this process has one host, to its end; called on every host with the same arguments.

    Args:
        endpoint: where the hosts meet.
        member: this host; `this_host` makes it. Index 0 is the launcher, and its host's ranks are children of this
            process.
        request: what is to run; its hosts are those that join.
        make_options: returns the job's options for its plan, of which there may come to be so many ranks; called on
            host 0 only.
        say: tells the user what is waited for.
        grace: seconds from SIGTERM to SIGKILL.
        elastic: what makes the job elastic: hosts may be replaced, by others with their index; None = it is not.
        stdout, stderr: where host 0 prints; None = on the standard streams of this process.

    Returns:
        The end of the job: on host 0 with the results of all ranks, elsewhere with the status and the failure report.

    Raises:
        UsageError: the request cannot be met.
        LaunchError: the hosts did not come together in time.
    """
    if member.hosts > 1 and importlib.util.find_spec("cryptography") is None:  # else it would look like a wrong key
        raise UsageError(
            "the Python package cryptography, by which hosts encrypt what they say, is not installed here: "
            "pip install cryptography"
        )
    if member.index:
        end = join(endpoint, member, say)
        return Outcome(end.status, None, end.report or None, end.told_to_end or None, {}, 0)
    listeners = _listeners(endpoint) if member.hosts > 1 else []
    job = secrets.token_hex(16)
    keepalive = chosen_settings(request).keepalive
    join_listener = JoinListener(listeners, endpoint, member, job, say, keepalive, is_elastic=elastic is not None)
    end = End(1, "the launcher has failed")
    sinks = (stdout or DescriptorSink(1), stderr or DescriptorSink(2))
    try:
        with _interrupting(join_listener):
            request = checked(request)
            members = join_listener.gather(None if elastic is None else elastic.min_np)
            context = replace(launch_context({}), job=job)
            if elastic is None:
                prepared = _fixed_job(join_listener, members, request, context, make_options, grace, sinks)
            else:
                prepared = _elastic_job(join_listener, members, request, elastic, context, make_options, grace, sinks)
        join_listener.check_interrupted()
        outcome = prepared.run()
        end = End(outcome.status, outcome.failure_report or "")
        return outcome
    except InterruptedByError as error:
        end = End(128 + error.signum, str(error))
        return Outcome(end.status, None, None, error.signum, {}, 0)
    except DistrunError as error:
        end = End(getattr(error, "status", 2 if isinstance(error, UsageError) else 1), str(error))
        raise
    finally:
        join_listener.close(end)


def this_host(
    index: int, hosts: int, ranks: int, *, name: str | None = None, gpus: Sequence[str] = (), wdir: str | None = None
) -> Member:
    """Return this host as a member of a job.

    Args:
        index: its number among the hosts.
        hosts: the number of hosts.
        ranks: the number of ranks that it takes.
        name: what to call it; None = its own name.
        gpus: the GPUs that its ranks may use, as in CUDA_VISIBLE_DEVICES; none = those that they find.
        wdir: the directory of its ranks; None = the present one.

    Raises:
        UsageError: the numbers cannot be.
    """
    if hosts < 1 or index not in range(hosts):
        raise UsageError(f"host {index} is not one of {hosts} hosts: allowed are 0 to {hosts - 1}")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks on host {index} are too few: allowed are 1 and more")
    identity = machine.identity()
    return Member(index, hosts, name or socket.gethostname(), ranks, wdir or os.getcwd(), tuple(gpus), identity)


def new_key() -> bytes:
    """Return a key for a `JoinEndpoint` that nobody can guess."""
    return secrets.token_bytes(32)


def _fixed_job(
    join_listener: JoinListener,
    members: Sequence[Member],
    request: LaunchRequest,
    context: LaunchContext,
    make_options: Callable[[LaunchPlan, int], JobOptions],
    grace: float,
    sinks: tuple[Sink, Sink],
) -> Job:
    """Return the job of hosts that stay what they are."""
    plan = plan_of(members, request, context, grace)
    settings = chosen_settings(request)
    if plan.size > 1:
        settings.check_backend(len(members))
    plan = check_plan(request, plan, ())
    options = make_options(plan, plan.size)
    return Job(plan, options, *sinks, starter=JoinedStarter(join_listener, options.start_timeout))


def _elastic_job(
    join_listener: JoinListener,
    members: Sequence[Member],
    request: LaunchRequest,
    elastic: ElasticRequest,
    context: LaunchContext,
    make_options: Callable[[LaunchPlan, int], JobOptions],
    grace: float,
    sinks: tuple[Sink, Sink],
) -> Job:
    """Return the job of hosts that may be replaced. What only such a job needs is imported for it."""
    from distrun.runner.elastic.job import ElasticJob
    from distrun.runner.launch.joined_elastic import plan_elastic

    plan = plan_elastic(join_listener, members, request, elastic, context, grace)
    options = make_options(plan.first, plan.options.max_np)
    starter = JoinedStarter(join_listener, options.start_timeout)
    return ElasticJob(plan, options, *sinks, make_starter=lambda names: starter)


@contextmanager
def _interrupting(join_listener: JoinListener) -> Iterator[None]:
    """Let signals interrupt `join_listener` until the job begins, which has a handler of its own."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.SignalReceived) and event.signum in signals.ENDING:
            join_listener.interrupt(event.signum)

    with signals.posted(note):
        yield


def _listeners(endpoint: JoinEndpoint) -> list[socket.socket]:
    """Return sockets that listen at the port of the endpoint, on all addresses of this host."""
    if endpoint.listeners:
        return list(endpoint.listeners)
    listeners: list[socket.socket] = []
    for wildcard in ("0.0.0.0", "::"):
        try:
            listeners.append(listen(wildcard, endpoint.address[1]))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and (listeners or wildcard != "::"):
                continue  # this host has the other family only
            for listener in listeners:
                listener.close()
            raise LaunchError(
                f"the launcher cannot listen at port {endpoint.address[1]} for {format_endpoint(*endpoint.address)}: "
                f"{error.strerror}; choose another port with --rdzv-endpoint HOST:PORT on all hosts"
            ) from None
    return listeners
