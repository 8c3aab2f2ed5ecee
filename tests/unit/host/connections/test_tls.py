"""TLS between two processes of a job: what one side gives, the other gets, and nobody else can read or change it."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time

import pytest
from hypothesis import given, strategies as st
from in_process.calls import DEADLINE, at_once, started
from session.hypothesis_profiles import examples

from distrun.errors import BootstrapError
from distrun.host.connections.authentication import run_handshake
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen
from distrun.host.connections.tls import Session, TlsError, TlsSocket
from distrun.runtime.transport.channel import Channel
from distrun.runtime.transport.connections import ConnectionSet, Stream

KEY = bytes(range(32))
HERE = "127.0.0.1"


def shake_hands(ends, sessions):
    """Run both sides; return what each raised."""

    def run(side: int) -> Exception | None:
        try:
            ends[side].settimeout(DEADLINE)
            run_handshake(ends[side], sessions[side].handshake())
            ends[side].settimeout(None)
        except (OSError, BootstrapError) as error:
            ends[side].close()
            return error
        return None

    return at_once(run, range(2))


def tls_pair(buffer: int = 0) -> tuple[TlsSocket, TlsSocket]:
    """Return two ends of an encrypted connection; they block."""
    ends = socket.socketpair()
    if buffer:
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    sessions = [Session(KEY, b"both challenges", is_server) for is_server in (True, False)]
    assert shake_hands(ends, sessions) == [None, None]
    server, client = (TlsSocket(end, session) for end, session in zip(ends, sessions, strict=True))
    return server, client


@pytest.fixture
def pair():
    server, client = tls_pair()
    with server, client:
        yield server, client


# The handshake --------------------------------------------------------------------------------------------------------


def test_a_dialled_connection_is_encrypted_with_tls_1_3_and_both_can_talk():
    listener = Listener([listen(HERE)], KEY, is_encrypted=True)
    dialed = started(lambda: dial(listener.endpoints, KEY, {"name": "a"}, 1e9, is_encrypted=True))
    ours, introduction = listener.receive(DEADLINE)
    peer = dialed.result(DEADLINE)
    with ours, peer.socket as theirs:
        assert (introduction, peer.key) == ({"name": "a"}, KEY)
        for connection in (ours, theirs):
            assert connection._tls.version() == "TLSv1.3"
            assert connection.gettimeout() is None
            assert not connection.get_inheritable()
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        theirs.sendall(b"first words")
        assert ours.recv(100) == b"first words"
        ours.sendall(b"an answer")
        assert theirs.recv(100) == b"an answer"
    listener.close()


@pytest.mark.parametrize(
    ("served", "said"),
    [(True, "it encrypts, and this process does not"), (False, "it does not encrypt, and this process does")],
)
def test_two_sides_that_want_different_things_do_not_connect_and_say_why(served, said):
    listener = Listener([listen(HERE)], KEY, is_encrypted=served)
    come, end = listener._begin, threading.Event()
    came: list[str] = []
    listener._begin = lambda connection, address: (came.append(address), come(connection, address))
    ours, theirs = socket.socketpair()

    def serve() -> None:
        while len(came) < 2:  # it comes again when it knows why the first attempt has failed
            assert listener.receive(0.05) is None
        theirs.close()
        while not end.is_set():
            assert listener.receive(0.05) is None

    serving = started(serve)
    with ours, pytest.raises(BootstrapError, match=said):
        dial(listener.endpoints, KEY, {}, time.monotonic() + DEADLINE, stop_on=[ours.fileno()], is_encrypted=not served)
    end.set()
    serving.result(DEADLINE)
    listener.close()


@pytest.mark.parametrize(
    ("key", "transcript"), [(KEY[::-1], b"both challenges"), (KEY, b"those of another connection")]
)
def test_a_certificate_of_another_key_or_of_another_connection_is_refused(key, transcript):
    ends = socket.socketpair()
    server, client = Session(KEY, b"both challenges", True), Session(key, transcript, False)
    errors = shake_hands(ends, (server, client))
    assert isinstance(errors[1], TlsError)
    assert isinstance(errors[0], (TlsError, OSError))
    for end in ends:
        end.close()


def test_a_client_without_a_certificate_is_refused():
    ends = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def stranger() -> bytes:
        with ends[1], context.wrap_socket(ends[1]) as talking:
            return talking.recv(1)

    answer = started(stranger)
    with ends[0], pytest.raises(TlsError, match="the other side cannot encrypt with the job key"):
        run_handshake(ends[0], Session(KEY, b"", True).handshake())
    try:
        assert answer.result(DEADLINE) == b""
    except OSError:
        pass


def test_both_sides_derive_the_same_certificates_and_each_connection_its_own():
    server, client = Session(KEY, b"one", True), Session(KEY, b"one", False)
    assert server._expected != client._expected
    assert Session(KEY, b"one", True)._expected == server._expected
    assert Session(KEY, b"two", True)._expected != server._expected


# The stream -----------------------------------------------------------------------------------------------------------


@examples(gate=5, full=25)
@given(
    st.lists(st.integers(1, 400_000), min_size=1, max_size=5), st.lists(st.integers(1, 300_000), min_size=1), st.data()
)
def test_bytes_arrive_as_they_were_sent_in_pieces_of_any_size(sizes, reads, data):
    """Both sides do not block, and the kernel's buffers are small: all that is half done goes on later."""
    server, client = tls_pair(buffer=data.draw(st.sampled_from([4096, 1 << 16])))
    with server, client:
        server.setblocking(False)
        client.setblocking(False)
        pattern = os.urandom(1000)
        message = (pattern * (sum(sizes) // 1000 + 1))[: sum(sizes)]
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        received, sent, turn = bytearray(), 0, 0
        while len(received) < len(message):
            try:
                end = next(end for end in ends if end > sent)
                sent += server.send(memoryview(message)[sent:end])
            except (BlockingIOError, StopIteration):
                pass
            try:
                into = bytearray(reads[turn % len(reads)])
                count = client.recv_into(into)
                assert count
                received += into[:count]
                turn += 1
            except BlockingIOError:
                pass
        assert received == message


def test_nothing_is_read_ahead_of_a_message_while_the_connection_blocks(pair):
    """The words after the messages of the rendezvous are read without blocking, when only a poll tells of them."""
    server, client = pair
    server.sendall(b"a message")
    server.sendall(b"the next")
    assert client.recv(9) == b"a message"
    poll = select.poll()
    poll.register(client, select.POLLIN)
    assert poll.poll(1000 * DEADLINE)
    client.setblocking(False)
    assert client.recv(100) == b"the next"
    with pytest.raises(BlockingIOError):
        client.recv(100)


def test_a_timeout_in_the_middle_of_a_record_loses_nothing(relay):
    record = relay.record(b"some words")
    with relay.receiver as client:
        for piece in (record[:3], record[3:10]):
            relay.line.sendall(piece)
            client.settimeout(0.01)
            with pytest.raises(TimeoutError):
                client.recv(100)
        client.setblocking(False)
        relay.line.sendall(record[10:])
        assert client.recv(100) == b"some words"


def test_one_thread_sends_while_another_receives(pair):
    server, client = pair
    server.setblocking(False)
    count = 5_000
    echo = started(lambda: [client.sendall(client.recv(1)) for _ in range(count)])
    heard = bytearray()

    def hear() -> None:
        poll = select.poll()
        poll.register(server, select.POLLIN)
        while len(heard) < count:
            poll.poll()
            try:
                heard.extend(server.recv(4096))
            except BlockingIOError:
                continue

    ear = started(hear)
    sent = 0
    while sent < count:
        try:
            sent += server.send(b"!")
        except BlockingIOError:
            continue
    for thread in (echo, ear):
        thread.result(DEADLINE)
    assert heard == b"!" * count


def test_the_end_of_the_connection_is_the_end_and_what_came_before_is_not_lost(pair):
    server, client = pair
    server.sendall(b"last words")
    server.shutdown(socket.SHUT_WR)  # half closed: the other direction goes on
    assert client.recv(100) == b"last words"
    assert client.recv(100) == b""
    client.sendall(b"an answer")
    assert server.recv(100) == b"an answer"


# Under the rank's own connections -------------------------------------------------------------------------------------


class Relay:
    """Carries the records of one direction, and changes them on request."""

    def __init__(self) -> None:
        ends = socket.socketpair()
        sessions = [Session(KEY, b"", is_server) for is_server in (True, False)]
        assert shake_hands(ends, sessions) == [None, None]
        for end in ends:
            end.close()
        self._sender = sessions[0]
        there, self.line = socket.socketpair()
        self.receiver = TlsSocket(there, sessions[1])

    def record(self, data: bytes) -> bytearray:
        self._sender.tls.write(data)
        return bytearray(self._sender.outgoing.read())

    def send(self, data: bytes, flip: int | None = None) -> None:
        record = self.record(data)
        if flip is not None:
            record[flip] ^= 1
        self.line.sendall(record)


@pytest.fixture
def relay():
    made = Relay()
    yield made
    made.line.close()


@pytest.fixture
def connections(relay):
    made = ConnectionSet()
    yield made
    made.close()


@pytest.mark.parametrize("place", [7, -1])
def test_a_message_that_was_changed_on_the_way_ends_the_connection_with_a_sentence(relay, connections, place):
    heard, ended = [], []
    Channel(connections, relay.receiver, heard.append, ended.append)
    relay.send(b"\x05\0\0\0hello")
    connections.progress()
    relay.send(b"\x05\0\0\0later", flip=place)
    connections.progress()
    assert heard == [b"hello"]
    assert "its connection broke (what came was changed on the way" in ended[0]


def test_an_array_that_was_changed_on_the_way_ends_the_connection_with_a_sentence(relay, connections):
    ended = []
    stream = Stream(connections, relay.receiver, ended.append)
    into = bytearray(8)
    ticket = stream.receive(memoryview(into))
    relay.send(b"righ")
    relay.send(b"teous", flip=8)
    connections.progress()
    connections.progress()
    assert ticket.left
    assert "what came was changed on the way" in ended[0]


def test_arrays_that_came_with_one_another_are_all_found(relay, connections):
    """They are decrypted long before they are asked for, and nothing more comes that a poll would tell of."""
    stream = Stream(connections, relay.receiver, lambda reason: None)
    relay.send(b"abcdefghij")
    parts = [bytearray(size) for size in (1, 2, 3, 4)]
    tickets = [stream.receive(memoryview(part)) for part in parts]
    connections.progress()
    assert [ticket.left for ticket in tickets] == [0, 0, 0, 0]
    assert b"".join(parts) == b"abcdefghij"


def test_many_small_arrays_that_wait_are_read_at_once(relay, connections):
    stream = Stream(connections, relay.receiver, lambda reason: None)
    parts = [bytearray(1) for _ in range(100)]
    tickets = [stream.receive(memoryview(part)) for part in parts]
    relay.send(bytes(range(100)))
    connections.progress()
    assert not any(ticket.left for ticket in tickets)
    assert b"".join(parts) == bytes(range(100))
