"""A job whose program a cluster manager starts on each host: the launcher on host 0, and joining hosts elsewhere."""

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
from distrun.runner.hosts.joining.planning import LAUNCHER, plan_of
from distrun.runner.job.job import Job
from distrun.runner.job.options import JobOptions, Outcome
from distrun.runner.output.sinks import DescriptorSink, Sink
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.prepare import check_plan, checked, chosen_settings, launch_context
from distrun.runner.planning.request import GRACE, LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.system import machine

if TYPE_CHECKING:
    from distrun.runner.elastic.host_list import HostList
    from distrun.runner.elastic.preparation import ElasticRequest


def launch(
    endpoint: JoinEndpoint,
    member: Member,
    request: LaunchRequest,
    make_options: Callable[[LaunchPlan, int], JobOptions],
    say: Callable[[str], None],
    *,
    grace: float = GRACE,
    elastic: ElasticRequest | None = None,
    stdout: Sink | None = None,
    stderr: Sink | None = None,
) -> Outcome:
    """Run this host's part of a job to its end. Called on every host with the same arguments.

    Args:
        endpoint: the endpoint where the hosts meet.
        member: this host, from `this_host`. Index 0 is the launcher, whose ranks are children of this process.
        request: the request, whose hosts are replaced by the hosts that join.
        make_options: returns the job's options for its plan and the largest number of ranks. Called on host 0 only.
        say: prints a line about the progress for the user.
        grace: seconds from SIGTERM to SIGKILL.
        elastic: the request for an elastic job, whose hosts may be replaced by others with their index. None = not
            elastic.
        stdout, stderr: the sinks that host 0 prints to. None = the standard streams of this process.

    Returns:
        The outcome of the job: on host 0 with the results of all ranks, elsewhere with the status and the failure
        report.

    Raises:
        UsageError: the request cannot be met.
        LaunchError: not all hosts joined in time.
    """
    if member.hosts > 1 and importlib.util.find_spec("cryptography") is None:  # or it would look like a wrong key
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
                plan = plan_of(members, request, context, grace)
                if plan.size > 1:
                    chosen_settings(request).check_backend(len(members))
                plan = check_plan(request, plan, ())
                options = make_options(plan, plan.size)
                starter = JoinedStarter(join_listener, options.start_timeout)
                prepared = Job(plan, options, *sinks, starter=starter)
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
        ranks: the number of its ranks.
        name: its name in the job. None = its host name.
        gpus: the GPUs that its ranks may use, as in CUDA_VISIBLE_DEVICES. Empty = all GPUs that they find.
        wdir: the working directory of its ranks. None = the current one.

    Raises:
        UsageError: the numbers are impossible.
    """
    if hosts < 1 or index not in range(hosts):
        raise UsageError(f"host {index} is not one of {hosts} hosts: allowed are 0 to {hosts - 1}")
    if ranks < 1:
        raise UsageError(f"{ranks} ranks on host {index} are too few: allowed are 1 and more")
    identity = machine.identity()
    return Member(index, hosts, name or socket.gethostname(), ranks, wdir or os.getcwd(), tuple(gpus), identity)


def new_key() -> bytes:
    """Return a random key for a `JoinEndpoint`."""
    return secrets.token_bytes(32)


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
    """Return the elastic job, on hosts that may be replaced. Modules that only such a job needs are imported here."""
    from distrun.runner.decisions.elastic.options import UNLIMITED
    from distrun.runner.elastic.host_list import HostList
    from distrun.runner.elastic.job import ElasticJob
    from distrun.runner.elastic.preparation import check_elastic, elastic_limits, plan_hosts

    settings = chosen_settings(request)
    check_elastic(request, settings)
    own, hosts = members[0].name, _hosts(members)

    def resolve(found: Sequence[Host]) -> tuple[list[Host], dict[str, Route]]:
        return list(found), {host.name: Route(host.name, host.name) for host in found if host.name != own}

    np = sum(member.ranks for member in members)
    limits = replace(elastic_limits(elastic, np, UNLIMITED, settings), discovers=True)
    context = replace(context, routes=resolve(hosts)[1])
    listed = HostList(resolve)
    request = replace(request, hosts=tuple(hosts))
    plan = plan_hosts(request, hosts, np, limits, listed, context, grace, LAUNCHER)
    plan = replace(plan, discovery=JoinedHosts(join_listener, listed))
    options = make_options(plan.first, plan.options.max_np)
    starter = JoinedStarter(join_listener, options.start_timeout)
    return ElasticJob(plan, options, *sinks, make_starter=lambda names: starter)


class JoinedHosts:
    """The hosts that have joined, as a host source. See `distrun.runner.elastic.discovery.HostSource` for the
    interface.
    """

    def __init__(self, join_listener: JoinListener, listed: HostList) -> None:
        self._join_listener = join_listener
        self._listed = listed

    def start(self, post: Callable[[events.Event], None], say: Callable[[str], None]) -> None:
        """Post the available hosts, now and whenever a host has joined or left."""

        def tell() -> None:
            post(events.HostsFound(self._listed.add(self.list_hosts())))

        self._join_listener.watch(tell)
        tell()

    def close(self) -> None:
        """Stop posting."""
        self._join_listener.watch(lambda: None)

    def list_hosts(self) -> list[Host]:
        """Return the available hosts."""
        return _hosts(self._join_listener.members())


def _hosts(members: Sequence[Member]) -> list[Host]:
    return [Host(member.name, member.ranks, gpus=member.gpus) for member in members]


@contextmanager
def _interrupting(join_listener: JoinListener) -> Iterator[None]:
    """Let signals interrupt the joining of hosts, until the job begins and installs its own handler."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.SignalReceived) and event.signum in signals.ENDING:
            join_listener.interrupt(event.signum)

    with signals.posted(note):
        yield


def _listeners(endpoint: JoinEndpoint) -> list[socket.socket]:
    """Return sockets that listen on the port of the endpoint, at all addresses of this host."""
    if endpoint.listeners:
        return list(endpoint.listeners)
    listeners: list[socket.socket] = []
    for wildcard in ("0.0.0.0", "::"):
        try:
            listeners.append(listen(wildcard, endpoint.address[1]))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and (listeners or wildcard != "::"):
                continue  # this host has only the other address family
            for listener in listeners:
                listener.close()
            raise LaunchError(
                f"the launcher cannot listen at port {endpoint.address[1]} for {format_endpoint(*endpoint.address)}: "
                f"{error.strerror}; choose another port with --rdzv-endpoint HOST:PORT on all hosts"
            ) from None
    return listeners
