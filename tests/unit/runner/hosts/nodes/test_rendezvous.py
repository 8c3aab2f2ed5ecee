"""Launchers that meet, in threads of one process and on its loopback interface."""

from __future__ import annotations

import platform
import socket
import threading
from queue import SimpleQueue

import pytest
from in_process.thread_clock import await_that, clock as clock

from distrun import __version__
from distrun.errors import LaunchError, UsageError
from distrun.host.connections.listener import listen
from distrun.host.endpoints import free_port
from distrun.runner.decisions import events
from distrun.runner.hosts.nodes import rendezvous
from distrun.runner.hosts.nodes.messages import Node
from distrun.runner.hosts.nodes.rendezvous import Place, meet, secret_of
from distrun.runner.hosts.nodes.roster import Size
from distrun.runner.hosts.nodes.server import Server
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.handshake import HostInfo

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
DEADLINE = 60.0  # seconds
HERE = "127.0.0.1"


class Launcher(threading.Thread):
    """One launcher, until the job can begin."""

    def __init__(self, port, nodes=2, name="box", number=None, timeout=DEADLINE, job="x", hosts=None, version=None):
        super().__init__(daemon=True)
        self.said = SimpleQueue()
        self.heard = SimpleQueue()
        self.error = self.meeting = None
        info = HostInfo(version or __version__, platform.python_version(), 1)
        self._place = Place((HERE, port), secret_of(None, job), Size(nodes, nodes), timeout, hosts)
        self._node = Node(name, 2, str(nodes), number, info)
        self.start()

    def run(self):
        try:
            self.meeting = meet(self._place, self._node, self.said.put)
        except Exception as error:
            self.error = error

    def end(self):
        """Wait until it has met the others, or failed to."""
        self.join(2 * DEADLINE)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.meeting


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def met(port):
    """Two launchers that have met and listen to each other: whoever hosts the rendezvous comes first."""
    launchers = [Launcher(port, name=name) for name in ("a", "b")]
    launchers.sort(key=lambda launcher: launcher.end().assembly.here)
    for launcher in launchers:
        launcher.meeting.peers.start(launcher.heard.put)
    yield launchers
    for launcher in launchers:
        launcher.meeting.peers.close()


def close(launchers):
    for launcher in launchers:
        launcher.end().peers.close()


def test_all_learn_the_same_and_make_the_same_key(port):
    launchers = [Launcher(port, 3, name) for name in ("a", "b", "c")]
    meetings = [launcher.end() for launcher in launchers]
    assert sorted(meeting.assembly.here for meeting in meetings) == [0, 1, 2]
    assert len({(meeting.assembly.job, meeting.assembly.nodes, meeting.key) for meeting in meetings}) == 1
    assert len(meetings[0].key) == 64
    close(launchers)


def test_launchers_of_one_machine_are_told_to_stay_on_it(port):
    launchers = [Launcher(port), Launcher(port)]
    nodes = launchers[0].end().assembly.nodes
    assert [node.name for node in nodes] == ["box", "box (node 1)"]
    assert {node.info.addresses[0].address for node in nodes} == {HERE}
    close(launchers)


def test_places_that_were_asked_for_decide_about_the_ranks(port):
    launchers = [Launcher(port, 2, "a", number=1), Launcher(port, 2, "b", number=0)]
    assert [node.name for node in launchers[0].end().assembly.nodes] == ["b", "a"]
    assert [launcher.end().assembly.here for launcher in launchers] == [1, 0]
    close(launchers)


def test_a_node_that_never_comes_is_missed_by_all_who_have(port, clock, monkeypatch):
    servers = []
    monkeypatch.setattr(rendezvous, "Server", lambda *place: servers.append(Server(*place)) or servers[-1])
    launchers = [Launcher(port, 3, name) for name in ("a", "b")]
    await_that(lambda: servers and servers[0]._connections)
    clock.end_for(*launchers)
    for launcher in launchers:
        with pytest.raises(LaunchError, match=r"2 of 3 nodes have come .* within 60 s: start the launcher on the"):
            launcher.end()


def test_an_endpoint_that_nobody_serves_is_named_when_time_is_up(port, clock):
    words = f"the other nodes were not found at {HERE}:{port} within 60 s: .*refused.*--rdzv-endpoint and --rdzv-id"
    launcher = Launcher(port, hosts=False)
    await_that(lambda: launcher in clock.failed)
    clock.end_for(launcher)
    with pytest.raises(LaunchError, match=words):
        launcher.end()


def test_a_launcher_of_another_job_is_not_let_in(port, clock):
    ours = Launcher(port, name="a", hosts=True)
    stranger = Launcher(port, name="b", job="y", hosts=False)
    await_that(lambda: stranger in clock.refused)
    clock.end_for(stranger)
    with pytest.raises(LaunchError, match=r"does not (accept|know) DISTRUN_KEY, or --rdzv-id where that is unset"):
        stranger.end()
    close([ours, Launcher(port, name="c", hosts=False)])


def test_who_misses_nodes_is_told_of_strangers(port, clock):
    ours, stranger = Launcher(port, hosts=True), Launcher(port, job="y", hosts=False)
    await_that(lambda: stranger in clock.refused)
    clock.end_for(stranger)
    stranger.join(DEADLINE)
    clock.end_for(ours)
    with pytest.raises(LaunchError, match=r"1 of 2 nodes has come \(box\) .*did not know DISTRUN_KEY, or --rdzv-id"):
        ours.end()


def test_another_version_is_refused_with_both(port):
    ours = Launcher(port, hosts=True)
    with pytest.raises(LaunchError, match=f"distrun 0.0.1 is installed there and {__version__} here"):
        Launcher(port, name="old", hosts=False, version="0.0.1").end()
    close([ours, Launcher(port, hosts=False)])


def test_who_is_to_host_and_cannot_is_told_why(port):
    with (
        listen(HERE, port),
        pytest.raises(UsageError, match=f"host the rendezvous at {HERE}:{port} and cannot: address"),
    ):
        Launcher(port, hosts=True).end()


def test_a_node_that_comes_when_the_job_has_begun_is_turned_away(met, port):
    with pytest.raises(LaunchError, match="the job has begun without late, with all the nodes that it may have"):
        Launcher(port, name="late", hosts=False).end()


def test_what_happens_on_a_node_becomes_known_on_the_others(port):
    launchers = [Launcher(port, 3, name) for name in ("a", "b", "c")]
    launchers.sort(key=lambda launcher: launcher.end().assembly.here)
    for launcher in launchers:
        launcher.meeting.peers.start(launcher.heard.put)
    exited = events.RankExited(3, RankExit(7))
    launchers[1].meeting.peers.tell(exited, b"last words")
    for launcher in (launchers[0], launchers[2]):
        news = launcher.heard.get(timeout=DEADLINE)
        assert (news.host, news.event, news.last_words) == (launchers[1].meeting.peers.here, exited, b"last words")
    close(launchers)
    assert launchers[1].heard.empty() or launchers[1].heard.get().event != exited


def test_a_launcher_that_vanishes_is_noticed(met):
    first, second = met
    second.meeting.peers.close()
    lost = first.heard.get(timeout=DEADLINE).event
    name = second.meeting.peers.here
    assert lost == events.AgentLost(name, f"the launcher on {name} is gone")


def test_a_launcher_that_leaves_when_all_is_over_is_not_missed(met):
    first, second = met
    gone = events.AgentGone(second.meeting.peers.here, 0)
    second.meeting.peers.tell(gone)
    second.meeting.peers.close()
    assert first.heard.get(timeout=DEADLINE).event == gone
    first.meeting.peers.close()
    assert first.heard.empty()


def test_the_end_of_the_host_of_the_rendezvous_is_the_end_of_all_others(port):
    launchers = [Launcher(port, 3, name) for name in ("a", "b", "c")]
    launchers.sort(key=lambda launcher: launcher.end().assembly.here)
    for launcher in launchers:
        launcher.meeting.peers.start(launcher.heard.put)
    names = [launcher.meeting.peers.here for launcher in launchers]
    launchers[0].meeting.peers.close()
    lost = [launchers[2].heard.get(timeout=DEADLINE).event for _ in range(2)]
    assert lost == [events.AgentLost(name, f"the launcher on {names[0]} is gone") for name in names[:2]]
    close(launchers[1:])


def test_a_stranger_who_connects_and_says_nothing_delays_nobody(port):
    ours = Launcher(port, hosts=True)
    while True:
        try:
            silent = socket.create_connection((HERE, port))
            break
        except ConnectionRefusedError:
            assert ours.is_alive()
    with silent:
        close([Launcher(port, hosts=False), ours])
