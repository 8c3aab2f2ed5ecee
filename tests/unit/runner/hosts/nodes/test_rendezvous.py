"""Launchers that meet, in threads of one process and on its loopback interface."""

import platform
import socket
from queue import SimpleQueue

import pytest
from in_process.calls import DEADLINE, Caller
from in_process.thread_clock import clock as clock
from shell import wait_until

from distrun import __version__
from distrun.errors import LaunchError, UsageError
from distrun.host.connections.listener import listen
from distrun.host.endpoints import free_port
from distrun.runner.decisions import events
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.nodes import rendezvous as module
from distrun.runner.hosts.nodes.rendezvous import RendezvousOptions, job_key, rendezvous
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.handshake import HostInfo

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
HERE = "127.0.0.1"


class Launcher(Caller):
    """One launcher, until the job can begin."""

    def __init__(self, port, nodes=2, name="box", index=None, timeout=DEADLINE, job="x", is_host=None, version=None):
        self.said = SimpleQueue()
        self.heard = SimpleQueue()
        info = HostInfo(__version__, platform.python_version(), 1)
        endpoint = JoinEndpoint((HERE, port), job.encode(), timeout, is_encrypted=False, key_name="--rdzv-id")
        self._options = RendezvousOptions(endpoint, nodes, nodes, is_host=is_host)
        self._member = Member(index, nodes, name, 2, "/", distrun=version or __version__, least=nodes, info=info)
        super().__init__(self._meet)

    def _meet(self):
        self.assembly, self.peers = rendezvous(self._options, self._member, self.said.put)
        self.key = job_key(self._options.endpoint, self.assembly)
        return self


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def met(request, port):
    """Launchers that have met and listen to each other: the host of the rendezvous comes first."""
    names = getattr(request, "param", "ab")
    launchers = [Launcher(port, len(names), name) for name in names]
    launchers.sort(key=lambda launcher: launcher.end().assembly.here)
    for launcher in launchers:
        launcher.peers.start(launcher.heard.put)
    yield launchers
    close(launchers)


@pytest.fixture
def listener(monkeypatch):
    """The listener of the launcher that hosts the rendezvous, once there is one."""
    made = []
    monkeypatch.setattr(module, "JoinListener", lambda *a, **k: made.append(JoinListener(*a, **k)) or made[-1])
    return made


def end_time(clock, listener, *launchers):
    """Let the time of these launchers be over, and wake the one that hosts the rendezvous."""
    clock.end_for(*launchers)
    with listener[0]._changed:
        listener[0]._changed.notify_all()


def close(launchers):
    for launcher in launchers:
        launcher.end().peers.close()


def test_all_learn_the_same_and_make_the_same_key(port):
    launchers = [Launcher(port, 3, name) for name in ("a", "b", "c")]
    found = [launcher.end() for launcher in launchers]
    assert sorted(each.assembly.here for each in found) == [0, 1, 2]
    assert len({(each.assembly.job, each.assembly.nodes, each.key) for each in found}) == 1
    assert len(found[0].key) == 64
    close(launchers)


def test_launchers_of_one_machine_are_told_to_stay_on_it(port):
    launchers = [Launcher(port), Launcher(port)]
    nodes = launchers[0].end().assembly.nodes
    assert [node.name for node in nodes] == ["box", "box (node 1)"]
    assert {node.info.addresses[0].address for node in nodes} == {HERE}
    close(launchers)


def test_places_that_were_asked_for_decide_about_the_ranks(port):
    launchers = [Launcher(port, 2, "a", index=1), Launcher(port, 2, "b", index=0)]
    assert [node.name for node in launchers[0].end().assembly.nodes] == ["b", "a"]
    assert [launcher.end().assembly.here for launcher in launchers] == [1, 0]
    close(launchers)


def test_a_node_that_never_comes_is_missed_by_all_who_have(port, clock, listener):
    launchers = [Launcher(port, 3, name) for name in ("a", "b")]
    wait_until(lambda: listener and listener[0]._waiting)
    end_time(clock, listener, *launchers)
    for launcher in launchers:
        with pytest.raises(LaunchError, match=r"2 of 3 hosts have joined .* within 60 s: see that all are started"):
            launcher.end()


def test_an_endpoint_that_nobody_serves_is_named_when_time_is_up(port, clock):
    words = f"the other nodes were not found at {HERE}:{port} within 60 s: .*refused.*--rdzv-endpoint and --rdzv-id"
    launcher = Launcher(port, is_host=False)
    wait_until(lambda: launcher in clock.failed)
    clock.end_for(launcher)
    with pytest.raises(LaunchError, match=words):
        launcher.end()


def test_a_launcher_of_another_job_is_not_let_in(port, clock):
    ours = Launcher(port, name="a", is_host=True)
    stranger = Launcher(port, name="b", job="y", is_host=False)
    wait_until(lambda: stranger in clock.refused)
    clock.end_for(stranger)
    with pytest.raises(LaunchError, match=r"does not (accept|know) --rdzv-id"):
        stranger.end()
    close([ours, Launcher(port, name="c", is_host=False)])


def test_who_misses_nodes_is_told_of_strangers(port, clock, listener):
    ours, stranger = Launcher(port, is_host=True), Launcher(port, job="y", is_host=False)
    wait_until(lambda: stranger in clock.refused)
    clock.end_for(stranger)
    stranger.join(DEADLINE)
    end_time(clock, listener, ours)
    with pytest.raises(LaunchError, match=r"1 of 2 hosts has joined \(box\) .*did not know --rdzv-id"):
        ours.end()


def test_another_version_is_refused_with_both(port):
    ours = Launcher(port, is_host=True)
    with pytest.raises(LaunchError, match=f"distrun 0.0.1 is installed there and {__version__} here"):
        Launcher(port, name="old", is_host=False, version="0.0.1").end()
    close([ours, Launcher(port, is_host=False)])


def test_who_is_to_host_and_cannot_is_told_why(port):
    with (
        listen(HERE, port),
        pytest.raises(UsageError, match=f"host the rendezvous at {HERE}:{port} and cannot: address"),
    ):
        Launcher(port, is_host=True).end()


def test_a_node_that_comes_when_the_job_has_begun_is_turned_away(met, port):
    with pytest.raises(LaunchError, match="the job has begun without late, and it is not elastic"):
        Launcher(port, name="late", is_host=False).end()


@pytest.mark.parametrize("met", ["abc"], indirect=True)
def test_what_happens_on_a_node_becomes_known_on_the_others(met):
    exited = events.RankExited(3, RankExit(7))
    met[1].peers.notify(exited, b"last lines")
    for launcher in (met[0], met[2]):
        heard = launcher.heard.get(timeout=DEADLINE)
        assert (heard.host, heard.event, heard.stderr_tail) == (met[1].peers.here, exited, b"last lines")
    close(met)
    assert met[1].heard.empty() or met[1].heard.get().event != exited


def test_a_launcher_that_vanishes_is_noticed(met):
    first, second = met
    second.peers.close()
    lost = first.heard.get(timeout=DEADLINE).event
    name = second.peers.here
    assert lost == events.AgentLost(name, f"the launcher on {name} is gone")


def test_a_launcher_that_leaves_when_all_is_over_is_not_missed(met):
    first, second = met
    gone = events.AgentGone(second.peers.here, 0)
    second.peers.notify(gone)
    second.peers.close()
    assert first.heard.get(timeout=DEADLINE).event == gone
    first.peers.close()
    assert first.heard.empty()


@pytest.mark.parametrize("met", ["abc"], indirect=True)
def test_the_end_of_the_host_of_the_rendezvous_is_the_end_of_all_others(met):
    names = [launcher.peers.here for launcher in met]
    met[0].peers.close()
    lost = [met[2].heard.get(timeout=DEADLINE).event for _ in range(2)]
    assert lost == [events.AgentLost(name, f"the launcher on {names[0]} is gone") for name in names[:2]]


def test_a_stranger_who_connects_and_says_nothing_delays_nobody(port):
    ours = Launcher(port, is_host=True)
    while True:
        try:
            silent = socket.create_connection((HERE, port))
            break
        except ConnectionRefusedError:
            assert ours.is_alive()
    with silent:
        close([Launcher(port, is_host=False), ours])
