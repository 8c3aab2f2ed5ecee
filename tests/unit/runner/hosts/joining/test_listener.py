"""The join listener lets hosts join over real connections, and nobody waits in vain if it fails."""

import threading
import time
from dataclasses import replace

import pytest
from in_process.calls import DEADLINE, started

from distrun.errors import LaunchError
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import listen
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import End, LostError, Member, MessageDecoder, MessageKind
from distrun.runner.hosts.joining.roster import Roster
from distrun.runner.protocol.handshake import HostError

OWN = Member(0, 2, "a", 1, "/")
OTHER = Member(1, 2, "b", 1, "/").to_json()


class Desk:
    """A join listener, what it says, and those who call it."""

    def __init__(self, own=OWN, is_elastic=False):
        listener = listen("127.0.0.1")
        self.endpoint = JoinEndpoint(listener.getsockname(), b"s" * 32, DEADLINE)
        self.said = []
        self.join_listener = JoinListener(
            [listener], self.endpoint, own, "job", self.said.append, 0.0, is_elastic=is_elastic
        )

    def call(self, **changes):
        """Call as host 1; return the connection and the kind and the text of the answer, or nothing."""
        deadline = time.monotonic() + DEADLINE
        connection = dial(
            [self.endpoint.address], self.endpoint.secret, OTHER | changes, deadline, is_encrypted=True
        ).socket
        connection.settimeout(DEADLINE)
        for kind, payload in MessageDecoder().feed(connection.recv(1 << 16)):
            return connection, kind, payload.decode()
        return connection, None, ""


@pytest.fixture
def desk():
    made = []

    def make(**options):
        made.append(Desk(**options))
        return made[-1]

    yield make
    for one in made:
        one.join_listener.close(End(0))


def test_an_introduction_that_makes_no_sense_is_refused_on_both_sides_and_the_next_host_may_join(desk):
    here = desk()
    for wrong in ({"python": None}, {"more": 1, "distrun": "9.9"}, {"gpus": 3}):
        connection, kind, text = here.call(**wrong)
        connection.close()
        assert kind is MessageKind.REFUSED
        assert "host 1 introduces itself as distrun " in text
        assert here.said[-1] == text
    connection, kind, _ = here.call()
    assert kind is MessageKind.ACCEPTED
    assert [member.name for member in here.join_listener.gather()] == ["a", "b"]
    connection.close()


def test_a_listener_that_fails_ends_the_wait_for_hosts_with_the_reason(desk, monkeypatch):
    def fail(roster, member):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(Roster, "refusal", fail)
    here = desk()
    calling = started(here.call)
    with pytest.raises(LaunchError, match=r"^no host can join any more: RuntimeError\('no such luck'\)$"):
        here.join_listener.gather()
    calling.exception(DEADLINE)


def test_an_elastic_job_is_told_that_no_host_can_join_any_more(desk, monkeypatch):
    here = desk(is_elastic=True)
    connection, _, _ = here.call()
    here.join_listener.gather()
    index, taken, _ = here.join_listener.take("b", time.monotonic() + DEADLINE)
    monkeypatch.setattr(Roster, "refusal", lambda roster, member: 1 / 0)
    here.call()[0].close()
    here.join_listener.release(index, taken, False)
    with pytest.raises(HostError, match="no host can join any more: ZeroDivisionError"):
        here.join_listener.take("b", time.monotonic() + DEADLINE)
    assert here.said == ["no host can join any more: ZeroDivisionError('division by zero')"]
    connection.close()


def test_a_host_that_has_gone_before_the_job_began_is_not_waited_for(desk):
    here = desk()
    connection, _, _ = here.call()
    here.join_listener.gather()
    gone = threading.Event()
    here.join_listener.watch(gone.set)
    connection.close()
    assert gone.wait(DEADLINE)
    with pytest.raises(LostError, match="it was there, and has gone again before the job began"):
        here.join_listener.take("b", time.monotonic() + 1000 * DEADLINE)


def test_a_host_of_an_elastic_job_is_called_as_before_whatever_its_name_is_now(desk):
    here = desk(own=replace(OWN, hosts=3), is_elastic=True)
    first, second = here.call(hosts=3)[0], here.call(hosts=3, index=2)[0]
    assert [member.name for member in here.join_listener.gather()] == ["a", "b", "b (host 2)"]
    gone = threading.Event()
    here.join_listener.watch(gone.set)
    second.close()
    assert gone.wait(DEADLINE)
    again, kind, _ = here.call(hosts=3, index=2, name="new")
    assert kind is MessageKind.ACCEPTED
    assert [member.name for member in here.join_listener.members()] == ["a", "b", "b (host 2)"]
    for connection in (first, again):
        connection.close()
