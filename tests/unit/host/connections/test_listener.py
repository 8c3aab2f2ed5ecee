"""Clients that know the key come through, quickly, whatever intruders do meanwhile."""

from __future__ import annotations

import os
import re
import resource
import select
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from in_process.calls import DEADLINE, started
from in_process.thread_clock import clock as clock
from shell import wait_until

from distrun.errors import BootstrapError, UsageError
from distrun.host.connections import dialer, handshake, listener, target
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen
from distrun.host.connections.target import PeerConnection, Target
from distrun.host.endpoints import format_endpoint

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
KEY = bytes(range(32))
HERE = "127.0.0.1"


def client(
    endpoints: list[tuple[str, int]], key: Any = KEY, stop_on: Sequence[int] = (), **facts: Any
) -> Future[PeerConnection]:
    """Dial in a thread."""
    return started(dial, endpoints, key, facts, time.monotonic() + DEADLINE, None, stop_on)


class Refused:
    """A call that nobody takes, and that goes on until it is given up."""

    def __init__(self, endpoints: list[tuple[str, int]], key: Any = KEY) -> None:
        self._end = os.eventfd(0)
        self._call = client(endpoints, key, [self._end])

    def give_up(self) -> str:
        """End it, and return what it says."""
        os.eventfd_write(self._end, 1)
        with pytest.raises(BootstrapError) as error:
            self._call.result(DEADLINE)
        os.close(self._end)
        return str(error.value)


@pytest.fixture
def desk(no_descriptors_left) -> Iterator[Listener]:
    with closing(Listener([listen(HERE)], KEY)) as desk:
        yield desk


def meet(desk: Listener, clients: list[Future[PeerConnection]]) -> dict[Any, dict[str, Any]]:
    """Receive as many clients as there are, and end the connections; the introductions by name."""
    introductions = {}
    for _ in clients:
        answer = desk.receive(DEADLINE)
        assert answer is not None, "somebody did not come through"
        answer[0].close()
        introductions[answer[1]["name"]] = answer[1]
    for each in clients:
        each.result(DEADLINE).socket.close()
    return introductions


def answered(desk: Listener, call: Callable[[], object]) -> tuple[socket.socket, dict[str, Any]]:
    """Receive the client that a call, made in a thread, is."""
    called = started(call)
    answer = desk.receive(DEADLINE)
    called.result(DEADLINE)
    return answer


def call(desk: Listener, facts: Any = None, *more: Any) -> PeerConnection:
    return dial(desk.endpoints, KEY, facts or {}, time.monotonic() + DEADLINE, *more)


def test_a_client_comes_with_an_introduction_and_both_can_talk(desk):
    calling = client(desk.endpoints, name="a", nested={"list": [1, 2]})
    ours, introduction = desk.receive(DEADLINE)
    peer = calling.result(DEADLINE)
    assert introduction == {"name": "a", "nested": {"list": [1, 2]}}
    assert (peer.endpoint, peer.key) == (desk.endpoints[0], KEY)
    for connection in (ours, peer.socket):
        assert connection.gettimeout() is None
        assert not connection.get_inheritable()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 16_500
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
    peer.socket.sendall(b"first words")
    assert ours.recv(100) == b"first words"
    for connection in (ours, peer.socket):
        connection.close()


def test_what_follows_an_introduction_at_once_is_left_in_the_connection(desk):
    def call_and_talk() -> None:
        with call(desk).socket as connection:
            connection.sendall(b"by the way")

    with answered(desk, call_and_talk)[0] as connection:
        assert connection.recv(100) == b"by the way"


def test_an_introduction_may_depend_on_the_connection(desk):
    def facts(connection: socket.socket) -> dict[str, Any]:
        return {"from": list(connection.getsockname())}

    connection, introduction = answered(desk, lambda: call(desk, facts).socket.close())
    with connection:
        assert introduction["from"] == list(connection.getpeername())


def test_receive_gives_up_in_time_and_at_once(desk, monkeypatch):
    pauses, pause = [], desk._pause
    monkeypatch.setattr(desk, "_pause", lambda *times: pauses.append(pause(*times)) or pauses[-1])
    start = time.monotonic()
    assert desk.receive(0.2) is None
    assert time.monotonic() - start > 0.15
    assert max(pauses) < 0.21
    pauses.clear()
    assert desk.receive(0) is None
    assert pauses == [0.0]


def test_the_descriptor_is_readable_while_there_is_something_to_do(desk):
    assert not select.select([desk], [], [], 0)[0]
    clients = [client(desk.endpoints, name=index) for index in range(5)]
    came = 0
    while came < 5:
        assert select.select([desk], [], [], DEADLINE)[0], "somebody waits and nobody says so"
        answer = desk.receive(0)
        if answer is not None:
            answer[0].close()
            came += 1
    for each in clients:
        each.result(DEADLINE).socket.close()
    assert desk.receive(0) is None
    assert not select.select([desk], [], [], 0)[0]


# Intruders ----------------------------------------------------------------------------------------------------------


def knock(desk: Listener) -> socket.socket:
    return socket.create_connection(desk.endpoints[0], DEADLINE)


@pytest.mark.parametrize(
    "junk",
    [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 60_000, b"\x80\x04K\x01." * 100],
    ids=["nothing", "a byte", "http", "zeros", "much", "pickle"],
)
def test_an_intruder_that_talks_nonsense_delays_no_rank(desk, junk, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 10 * DEADLINE)  # waiting for it would take too long
    with knock(desk) as intruder:
        intruder.sendall(junk)
        assert meet(desk, [client(desk.endpoints, name=index) for index in range(5)]).keys() == set(range(5))


def test_wrong_keys_are_counted_and_told_apart(desk):
    assert desk.describe_refused() == ""
    meet(desk, [client(desk.endpoints, name="right")])
    for key in (KEY[::-1], b""):
        wrong, before = Refused(desk.endpoints, key), desk.refused
        while desk.refused < before + 2:  # it comes again when it knows that it was refused
            assert desk.receive(0.05) is None
        assert re.match(r"no connection was made within [\d.]+ s: 127\.0\.0\.1:\d+ \(it does not acc", wrong.give_up())
    meet(desk, [client(desk.endpoints, name="right")])
    assert desk.describe_refused() == f"{desk.refused} clients did not know the job key, the last from 127.0.0.1"


def test_nothing_beyond_a_wrong_proof_is_read(desk):
    with knock(desk) as intruder:
        intruder.sendall(bytes(64) + b"secret payload")
        while not desk.refused:
            assert desk.receive(0.05) is None
        with pytest.raises(ConnectionResetError):  # not the orderly end of a connection whose data was read
            list(iter(lambda: intruder.recv(1000), b""))
    assert desk.describe_refused() == "1 client, from 127.0.0.1, did not know the job key"


def test_two_hundred_that_connect_and_hang_delay_nobody(desk, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 10 * DEADLINE)  # waiting for one would take too long
    intruders = [knock(desk) for _ in range(200)]
    meet(desk, [client(desk.endpoints, name=index) for index in range(20)])
    for intruder in intruders:
        intruder.close()


def test_clients_that_hang_and_clients_that_trickle_are_dropped_in_time(desk, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT", 0.3)
    with knock(desk) as silent, knock(desk) as slow:
        start = time.monotonic()
        ended: dict[socket.socket, float] = {}
        slow.settimeout(0.01)
        silent.settimeout(0.01)
        while len(ended) < 2:
            assert time.monotonic() - start < DEADLINE
            assert desk.receive(0.05) is None
            for intruder in (silent, slow):
                if intruder not in ended and is_over(intruder):
                    ended[intruder] = time.monotonic() - start
            with suppress(ConnectionError):
                slow.send(b"\0")
        assert min(ended.values()) > 0.2
    assert not desk._clients


def is_over(connection: socket.socket) -> bool:
    with suppress(ConnectionError):
        try:
            while connection.recv(100):
                pass
        except TimeoutError:
            return False
    return True


def test_the_oldest_make_room_when_there_are_too_many(desk, monkeypatch):
    desk._most = 10
    intruders = [knock(desk) for _ in range(50)]
    meet(desk, [client(desk.endpoints, name=index) for index in range(3)])
    assert len(desk._clients) <= 10
    assert is_over(intruders[0])
    for intruder in intruders:
        intruder.close()


def test_honest_clients_that_come_at_once_hardly_put_each_other_out(desk, monkeypatch):
    desk._most = 50
    dropped = []
    drop = desk._drop
    monkeypatch.setattr(desk, "_drop", lambda fd: (dropped.append(fd), drop(fd)))
    meet(desk, [client(desk.endpoints, name=index) for index in range(300)])
    assert len(dropped) < 300, len(dropped)


def test_intruders_are_dropped_when_no_files_are_left(desk):
    intruders = [knock(desk) for _ in range(20)]
    assert desk.receive(0) is None
    with socket.socket() as client, no_more_files():
        client.connect(desk.endpoints[0])
        poll, start = select.poll(), time.monotonic()
        poll.register(client, select.POLLIN)
        while not poll.poll(0):
            assert time.monotonic() - start < DEADLINE
            assert desk.receive(0.05) is None
        assert client.recv(8) == b"distrun1"
        assert 15 < len(desk._clients) <= 20
    for intruder in intruders:
        intruder.close()


def test_it_is_an_error_when_no_files_are_left_and_there_is_nobody_to_drop(desk):
    with socket.socket() as client, no_more_files():
        client.connect(desk.endpoints[0])
        with pytest.raises(BootstrapError, match=r"no connection can be accepted: Too many open files; .*ulimit -n"):
            desk.receive(DEADLINE)


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 2, hard))
    try:
        with suppress(OSError):
            while True:
                filler.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filler:
            os.close(fd)


@pytest.mark.parametrize(
    "text", [b"[1]", b"nonsense", b"\xff\xfe", b"[" * 50_000], ids=["list", "text", "bytes", "deep"]
)
def test_an_introduction_that_is_no_object_is_dropped(desk, text, monkeypatch):
    introduced = started(introduce_badly, desk.endpoints, text)
    meet(desk, [client(desk.endpoints, name="good")])
    while not introduced.done():
        assert desk.receive(0.05) is None
    assert desk.refused == 0


def introduce_badly(endpoints: list[tuple[str, int]], text: bytes) -> None:
    """Prove the key, then say `text`, and wait for the end of the connection."""
    from distrun.host.connections.authentication import run_handshake

    with socket.create_connection(endpoints[0], DEADLINE) as connection:
        run_handshake(connection, handshake.client_handshake(KEY, handshake.context(connection.getpeername())))
        connection.sendall(struct.pack("<I", len(text)) + text)
        with suppress(ConnectionError):
            assert connection.recv(1) == b""


def test_an_introduction_that_is_too_long_is_refused_on_both_sides(desk):
    calling = client(desk.endpoints, name="x" * 70_000)
    while not calling.done():
        assert desk.receive(0.05) is None
    with pytest.raises(ValueError, match="longer than 65536"):
        calling.result()


# Dialing ------------------------------------------------------------------------------------------------------------


def test_a_host_that_comes_late_is_found(no_descriptors_left, clock):
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind((HERE, 0))
        place = (HERE, keeper.getsockname()[1])
        early = client([place], name="early")
        wait_until(lambda: clock.failed)
        assert not early.done()
        with closing(Listener([listen(*place, shared=True)], KEY)) as desk:
            meet(desk, [early])


def test_all_endpoints_are_tried_and_those_that_do_not_answer_delay_nobody(desk, monkeypatch):
    monkeypatch.setattr(target, "HANDSHAKE_TIMEOUT", 10 * DEADLINE)  # waiting for one would take too long
    with socket.create_server((HERE, 0)) as mute, socket.socket() as closed:
        closed.bind((HERE, 0))
        with closing(Listener([listen(HERE)], KEY[::-1])) as other:
            serving = started(other.receive, 0.5)
            silent = [mute.getsockname(), closed.getsockname(), *other.endpoints, ("no.such.host.invalid", 1)]
            meet(desk, [client([*silent, *desk.endpoints], name="a")])
            serving.result(DEADLINE)


def test_nothing_to_dial_is_said():
    with pytest.raises(BootstrapError, match=r"^no connection was made within [\d.]+ s: there is no endpoint to try$"):
        dial([], KEY, {}, time.monotonic() + 0.1)


def test_why_nobody_was_reached_is_told_for_each_place():
    with socket.create_server((HERE, 0)) as mute, socket.socket() as closed, talker(b"SSH-2.0-hello\r\n") as ssh:
        closed.bind((HERE, 0))
        endpoints = [mute.getsockname(), closed.getsockname(), ssh, ("no.such.host.invalid", 1)]
        expected = [
            f"{format_endpoint(*endpoints[0])} (it accepts connections and says nothing)",
            f"{format_endpoint(*endpoints[1])} (connection refused)",
            f"{format_endpoint(*endpoints[2])} (another program answers there)",
            "no.such.host.invalid:1 (the name is unknown: ",
        ]
        start = time.monotonic()
        with closing(dialer._Dialer(endpoints, KEY, None, (), start)) as attempts:
            while not all(words in attempts.reasons() for words in expected):
                assert time.monotonic() - start < DEADLINE, attempts.reasons()
                assert attempts.next_connection(time.monotonic() + 0.05) is None


@contextmanager
def talker(text: bytes) -> Iterator[tuple[str, int]]:
    """A program that says the same to everybody."""
    with socket.create_server((HERE, 0)) as server:

        def talk() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(text)

        talking = started(talk)
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)
        talking.result(DEADLINE)


def test_the_first_of_several_endpoints_wins_even_if_the_second_answers_before(monkeypatch):
    monkeypatch.setattr(dialer, "_PREFERENCE", DEADLINE)
    listener = listen(HERE)  # the client's attempt waits here
    slow = Listener([listen(HERE)], KEY)
    calling = client([listener.getsockname(), *slow.endpoints], name="a")
    assert slow.receive(0.5) is None  # it has proved itself, and waits for the first before it introduces itself
    fast = Listener([listener], KEY)
    meet(fast, [calling])
    assert calling.result().endpoint == fast.endpoints[0]
    for desk in (slow, fast):
        desk.close()


def test_a_server_that_closes_after_an_introduction_is_dialed_again(desk):
    desk._most = 1  # each new client puts out the one before
    meet(desk, [client(desk.endpoints, name=index) for index in range(4)])


def test_a_socket_that_meets_itself_is_no_answer():
    with socket.socket() as itself:
        itself.bind((HERE, 0))
        place = itself.getsockname()
        itself.connect(place)
        assert itself.getsockname() == itself.getpeername()  # such things exist
        with selectors.DefaultSelector() as selector:
            target = Target(place, socket.AF_INET, place, selector, 0.0, connection=itself)
            assert target.advance(KEY, False) is None
            assert (target.connection, target.words) == (None, "connection refused")


def test_dialing_ends_when_something_comes_on_another_connection():
    ours, theirs = socket.socketpair()
    with ours, socket.create_server((HERE, 0)) as mute:
        started(theirs.close)
        start = time.monotonic()
        with pytest.raises(BootstrapError, match="no connection was made"):
            dial([mute.getsockname()], KEY, {}, start + DEADLINE, stop_on=[ours.fileno()])
        assert time.monotonic() - start < DEADLINE


def test_a_connection_can_come_from_a_chosen_address(desk):
    with answered(desk, lambda: call(desk, {}, "127.0.0.9").socket.close())[0] as connection:
        assert connection.getpeername()[0] == "127.0.0.9"


def test_a_handshake_passed_on_by_a_process_in_between_is_refused(desk):
    """A relay that knows no key brings both together, and neither believes the other."""
    relay = socket.create_server((HERE, 0))

    def pass_on() -> None:
        near, _ = relay.accept()
        far = socket.create_connection(desk.endpoints[0])
        with near, far:
            for source, sink, size in ((far, near, 12 + 32), (near, far, 64)):
                data = source.recv(size, socket.MSG_WAITALL)
                assert len(data) == size
                sink.sendall(data)
            near.sendall(far.recv(32))

    passed_on = started(pass_on)
    caller = Refused([relay.getsockname()])
    while not passed_on.done():
        assert desk.receive(0.05) is None
    relay.settimeout(DEADLINE)
    with relay, relay.accept()[0]:  # it comes again when it knows that it was refused
        assert "does not accept the job key" in caller.give_up()
    assert desk.refused == 1


# Greetings ----------------------------------------------------------------------------------------------------------


def test_a_greeting_may_hold_the_key():
    with closing(Listener([listen(HERE)], KEY, b"sealed:" + KEY)) as desk:
        calling = client(desk.endpoints, lambda greeting: greeting.removeprefix(b"sealed:"), name="a")
        meet(desk, [calling, client(desk.endpoints, KEY, name="b")])
        assert calling.result().key == KEY


def test_a_server_whose_greeting_cannot_be_opened_is_refused():
    opened = []

    def opener(greeting: bytes) -> bytes:
        opened.append(greeting)
        raise UsageError(f"{greeting!r} was sealed by user id 7")

    with closing(Listener([listen(HERE)], KEY, b"odd")) as desk:
        caller = Refused(desk.endpoints, opener)
        while len(opened) < 2:  # it comes again when it knows that the first one cannot be opened
            assert desk.receive(0.05) is None
        assert "(b'odd' was sealed by user id 7)" in caller.give_up()


def test_a_greeting_has_a_limit():
    with socket.create_server((HERE, 0)) as listener, pytest.raises(ValueError, match="longer than 16384"):
        Listener([listener], KEY, bytes(1 << 15))


# Addresses ----------------------------------------------------------------------------------------------------------


def test_ipv6_works_and_several_listeners_too():
    try:
        listener = listen("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with closing(Listener([listener, listen(HERE)], KEY)) as desk:
        clients = [client([place], name=str(place)) for place in desk.endpoints]
        assert meet(desk, clients).keys() == {str(place) for place in desk.endpoints}
        assert clients[0].result().endpoint == desk.endpoints[0]


def test_names_are_resolved(desk):
    meet(desk, [client([("localhost", desk.endpoints[0][1])], name="a")])


def test_a_port_is_shared_only_if_both_want_it():
    with listen(HERE, shared=True) as one:
        port = one.getsockname()[1]
        listen(HERE, port, shared=True).close()
        with pytest.raises(OSError, match="in use"):
            listen(HERE, port)


def test_an_address_of_another_machine_cannot_be_listened_at():
    with pytest.raises(OSError, match="Cannot assign"):
        listen("203.0.113.7")
