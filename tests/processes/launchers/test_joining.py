"""Hosts that call the launcher: several on this machine, which find it on the loopback interface."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from shell import wait_until

from distrun.contract.settings import Settings
from distrun.host.connections.dialer import dial
from distrun.host.endpoints import parse_endpoint
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.messages import Member, MessageDecoder, MessageKind

DEADLINE = 60.0  # seconds; as in the conftest.py above
KEY = "0123456789abcdef" * 4
WAITS = "import time; print('up', flush=True); time.sleep(1000)"
PLACE = """
import os
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CALLED")))
assert not {"DISTRUN_HOSTS", "DISTRUN_ENDPOINT", "DISTRUN_SLOTS"} & os.environ.keys()
assert os.environ["DISTRUN_KEY"] != "0123456789abcdef" * 4
"""
ADDS = """
import distrun, numpy
distrun.init()
print(distrun.allreduce(numpy.ones(2), op=distrun.Sum)[0], distrun.local_size())
"""


class Hosts:
    """Starts what a cluster manager starts on each host."""

    def __init__(self, distrun: Callable[..., Any], port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self._distrun = distrun

    def start(self, index: int, code: str, *options: str, hosts: int = 2, key: str = KEY, **environ: str) -> Any:
        told = {"DISTRUN_HOSTS": str(hosts), "JOB_COMPLETION_INDEX": str(index), "DISTRUN_ENDPOINT": self.endpoint}
        command = ("agent", "--start-timeout", "60", *options, "--", sys.executable, "-c", code)
        return self._distrun(*command, DISTRUN_KEY=key, **{**told, **environ})

    def start_two(self, *options: str) -> list[Any]:
        """Start two hosts whose ranks wait, and return them when both ranks run."""
        launches = [self.start(index, WAITS, *options) for index in (0, 1)]
        launches[0].stdout.wait_for(b"up", 2)
        return launches

    def join_by_hand(self, member: Member, last: MessageKind) -> socket.socket:
        """Join as a host without an agent; returns the connection once a message of that kind has come."""
        endpoint = JoinEndpoint(parse_endpoint(self.endpoint), Settings.of({"DISTRUN_KEY": KEY}).key or b"")
        deadline = time.monotonic() + DEADLINE
        peer = dial([endpoint.address], endpoint.secret, member.to_json(), deadline, is_encrypted=True)
        peer.socket.settimeout(DEADLINE)
        decoder, heard = MessageDecoder(), []
        while last not in heard:
            heard += [kind for kind, _ in decoder.feed(peer.socket.recv(1 << 16))]
        return peer.socket


@pytest.fixture
def hosts(distrun, rendezvous_port):
    return Hosts(distrun, rendezvous_port)


def ended_alike(*launches: Any) -> int:
    """Wait for all of them. Returns their status."""
    (status,) = {launch.wait() for launch in launches}
    return status


def rank_of(launch: Any) -> psutil.Process:
    """The process of the only rank of a host that waits."""
    (rank,) = (item for item in launch.family() if item.cmdline()[1:] == ["-c", WAITS])
    return rank


def await_listening(launch: Any) -> None:
    """Wait until hosts can call a launcher."""
    wait_until(lambda: any(map(listens, launch.family())))


def listens(process: psutil.Process) -> bool:
    try:
        return any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))
    except psutil.Error:  # it has just ended
        return False


@pytest.mark.gate
def test_hosts_join_in_any_order_and_are_numbered_by_index_with_the_local_ranks_of_one_machine(hosts):
    second = hosts.start(2, PLACE, hosts=3, CALLED="c")
    first = hosts.start(1, PLACE, hosts=3, DISTRUN_SLOTS="2", CALLED="b")
    launcher = hosts.start(0, PLACE, hosts=3, CALLED="a")
    assert ended_alike(launcher, first, second) == 0
    assert sorted(launcher.stdout.data.decode().splitlines()) == [
        "[0] 0 4 0 4 a",
        "[1] 1 4 1 4 b",
        "[2] 2 4 2 4 b",
        "[3] 3 4 3 4 c",
    ]
    assert first.stdout.data == second.stdout.data == b""


def test_ranks_below_several_agents_of_a_machine_communicate(hosts):
    launches = [hosts.start(index, ADDS) for index in (0, 1)]
    assert ended_alike(*launches) == 0
    assert sorted(launches[0].stdout.data.splitlines()) == [b"[0] 2.0 2", b"[1] 2.0 2"]


@pytest.mark.gate
def test_a_rank_that_fails_is_in_the_failure_report_of_all_hosts(hosts):
    fails = "import os, time; assert os.environ['RANK'] == '0', 'no such luck'; time.sleep(1000)"
    launches = [hosts.start(index, fails) for index in (0, 1)]
    assert ended_alike(*launches) == 1
    for launch in launches:
        assert b"exited with code 1" in launch.stderr.data
        assert b"    AssertionError: no such luck\n" in launch.stderr.data


def test_an_agent_that_is_killed_is_named_and_nothing_of_its_host_is_left(hosts):
    launches = hosts.start_two()
    launches[1].agent().kill()
    assert ended_alike(*launches) == 137
    for launch in launches:
        assert b"(host 1) (pid " in launch.stderr.data
        assert b"was killed by SIGKILL" in launch.stderr.data


@pytest.mark.gate
def test_a_host_whose_process_is_killed_is_out_of_reach_and_its_ranks_end(hosts):
    launches = hosts.start_two()
    rank = rank_of(launches[1])
    launches[1].process.kill()
    assert launches[0].wait() == 143
    assert b"is out of reach: the connection with its host is gone" in launches[0].stderr.data
    assert launches[1].wait() == -signal.SIGKILL
    rank.wait(DEADLINE)
    psutil.wait_procs(launches[1].family(), DEADLINE)


@pytest.mark.gate
def test_a_host_that_is_told_to_end_ends_its_ranks_and_says_so_to_the_launcher(hosts):
    launches = hosts.start_two()
    launches[1].process.terminate()
    assert ended_alike(*launches) == 143
    assert b"was told to end: its host's process received SIGTERM" in launches[0].stderr.data
    assert launches[1].stderr.data == b"distrun: this host has left the job: its process received SIGTERM\n"


def test_a_frozen_host_is_given_up_after_the_keepalive_and_ends_when_it_thaws(hosts):
    launches = [hosts.start(0, WAITS, "--keepalive", "4")]
    await_listening(launches[0])
    launches.append(hosts.start(1, WAITS, "--keepalive", "4", "--start-timeout", "4"))
    launches[0].stdout.wait_for(b"up", 2)
    launches[1].process.send_signal(signal.SIGSTOP)
    assert launches[0].wait() == 143
    assert b"nothing was heard from " in launches[0].stderr.data
    launches[1].process.send_signal(signal.SIGCONT)
    assert ended_alike(*launches) == 143
    assert b"Traceback" not in launches[1].stderr.data


@pytest.mark.gate
def test_a_host_that_is_gone_before_its_agent_answers_is_no_fault_of_the_users(hosts):
    launcher = hosts.start(0, WAITS)
    connection = hosts.join_by_hand(Member(1, 2, "elsewhere", 1, "/", machine="elsewhere"), MessageKind.INPUT)
    connection.close()
    assert ended_alike(launcher) == 143
    told = b"host elsewhere cannot be used, so no rank was started: the connection with it was lost"
    assert told in launcher.stderr.data


def test_a_frozen_launcher_is_given_up_by_the_agents_which_it_reports_when_it_thaws(hosts):
    launches = hosts.start_two("--keepalive", "4")
    rank = rank_of(launches[1])
    launches[0].process.send_signal(signal.SIGSTOP)
    rank.wait(DEADLINE)
    launches[0].process.send_signal(signal.SIGCONT)
    assert ended_alike(*launches) == 143
    assert b"has ended, as it had heard nothing from the launcher for 4 s" in launches[0].stderr.data


def test_a_signal_to_the_launcher_ends_the_job_everywhere(hosts):
    launches = hosts.start_two()
    launches[0].process.terminate()
    assert ended_alike(*launches) == 143


@pytest.mark.gate
def test_a_launcher_that_is_killed_ends_the_ranks_and_its_hosts_join_the_next_one(hosts):
    launches = hosts.start_two()
    before = rank_of(launches[1])
    left = psutil.Process(launches[0].process.pid).children(recursive=True)
    launches[0].process.kill()
    before.wait(DEADLINE)
    psutil.wait_procs(left, DEADLINE)
    assert b"the connection with the launcher at " in launches[1].stderr.wait_for(b"is gone")
    again = hosts.start(0, "print('done')")
    assert ended_alike(again, launches[1]) == 0
    assert again.stdout.data.count(b"done") == 2


@pytest.mark.gate
def test_who_waits_for_the_launcher_ends_at_once_when_it_is_told_to(hosts):
    alone = hosts.start(1, WAITS)
    alone.stderr.wait_for(b"waiting for the launcher at ")
    alone.process.terminate()
    assert ended_alike(alone) == 143


def test_a_launcher_that_misses_hosts_names_them_and_tells_those_who_came(hosts):
    first = hosts.start(1, WAITS, hosts=3)
    first.stderr.wait_for(b"waiting for the launcher at ")  # it calls until the launcher answers
    launcher = hosts.start(0, WAITS, "--start-timeout", "3", hosts=3)
    assert ended_alike(launcher, first) == 143
    for launch in (launcher, first):
        assert b"2 of 3 hosts have joined (0 " in launch.stderr.data
        assert b", not 2 within 3 s: see that all are started" in launch.stderr.data


@pytest.mark.gate
def test_a_launcher_that_does_not_come_is_named_with_the_reason(hosts):
    alone = hosts.start(1, WAITS, "--start-timeout", "1")
    assert ended_alike(alone) == 143
    told = f"the launcher at {hosts.endpoint} was not reached within 1 s: no connection was made within ".encode()
    assert told in alone.stderr.data
    assert b"connection refused" in alone.stderr.data


@pytest.mark.gate
def test_a_wrong_key_is_refused_with_a_sentence_on_both_sides(hosts):
    launcher = hosts.start(0, WAITS)
    await_listening(launcher)
    stranger = hosts.start(1, WAITS, "--start-timeout", "5", key=KEY[::-1])
    launcher.stderr.wait_for(b"did not know DISTRUN_KEY, and cannot join")
    assert stranger.wait() == 143
    launcher.process.terminate()
    assert launcher.wait() == 143
    assert b"it does not accept DISTRUN_KEY" in stranger.stderr.data
    assert KEY.encode() not in launcher.stderr.data + stranger.stderr.data


def test_an_index_that_does_not_exist_and_another_number_of_hosts_are_refused_with_both_numbers(hosts):
    launcher = hosts.start(0, WAITS, hosts=2)
    other = hosts.start(1, WAITS, hosts=3)
    assert other.wait() == 1
    said = b"was told that there are 3 hosts, and host 0 that there are 2: give all the same number"
    assert said in other.stderr.data
    assert said in launcher.stderr.wait_for(b"the same number")
    assert hosts.start(1, WAITS, hosts=1).wait() == 2
    launcher.process.send_signal(signal.SIGINT)
    assert ended_alike(launcher) == 130


@pytest.mark.gate
def test_two_hosts_with_one_index_are_named_by_the_launcher_and_the_second_waits(hosts):
    launcher = hosts.start(0, WAITS, hosts=3)
    connection = hosts.join_by_hand(Member(1, 3, "first", 1, "/"), MessageKind.ACCEPTED)
    second = hosts.start(1, WAITS, hosts=3)
    for launch in (launcher, second):
        launch.stderr.wait_for(b"host 1 has joined already (first), and ")
    second.process.terminate()
    assert ended_alike(second) == 143
    launcher.process.send_signal(signal.SIGINT)
    assert ended_alike(launcher) == 130
    connection.close()


@pytest.mark.gate
def test_a_port_that_another_program_has_is_told_though_it_has_it_for_one_family_only(hosts):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("0.0.0.0", parse_endpoint(hosts.endpoint)[1]))
        other.listen()
        launcher = hosts.start(0, WAITS)
        assert launcher.wait() == 1
    assert b"the launcher cannot listen at port " in launcher.stderr.data
    assert b"Address already in use; choose another port with --rdzv-endpoint" in launcher.stderr.data


@pytest.mark.gate
def test_a_host_that_comes_too_late_is_told_that_the_job_has_begun(hosts):
    launches = hosts.start_two()
    late = hosts.start(1, WAITS)
    assert b"the job has begun without " in late.ended(1)
    launches[0].process.send_signal(signal.SIGINT)
    assert ended_alike(*launches) == 130


@pytest.mark.gate
def test_hosts_without_a_key_are_refused(hosts):
    nobody = hosts.start(1, WAITS, key="")
    assert b"have no secret to know one another by: set DISTRUN_KEY" in nobody.ended(2)


LAUNCHES = """
import os, pickle, sys
from distrun.runner.job.calls import pickled_call
from distrun.runner.job.options import JobOptions
from distrun.runner.launch.joined import launch, this_host
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.planning.request import LaunchRequest

index, port, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.chdir(directory)
endpoint = JoinEndpoint(("127.0.0.1", port), b"k" * 32, 60.0, rejoins=False)
member = this_host(index, 2, 1, gpus=[str(5 - index)])
call = pickled_call(lambda x: (os.getcwd(), os.environ["CUDA_VISIBLE_DEVICES"], x), (7,), {})
options = JobOptions(function=pickle.dumps(sys.path) + call)
request = LaunchRequest((sys.executable, "-c", ""))
outcome = launch(endpoint, member, request, lambda plan, most: options, lambda text: print(text, file=sys.stderr))
print({rank: pickle.loads(pickle.loads(data)[1]) for rank, data in sorted(outcome.results.items())}, outcome.status)
"""


@pytest.mark.gate
def test_a_function_is_called_on_every_rank_in_the_directory_of_its_host_and_host_0_has_the_results(
    tmp_path, rendezvous_port
):
    port = str(rendezvous_port)
    started = []
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
        command = [sys.executable, "-c", LAUNCHES, str(index), port, str(tmp_path / str(index))]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=DEADLINE) for process in started]
    results = {index: (str(tmp_path / str(index)), "5,4", 7) for index in (0, 1)}
    assert said[0][0].splitlines()[0] == f"{results} 0", said
    assert said[1][0].splitlines()[0] == "{} 0"
