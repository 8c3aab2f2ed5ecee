"""Messages in trouble: the first argument names the scenario, the second the rank that it happens to."""

import os
import signal
import sys
import threading
from functools import partial

import numpy as np

import distrun
from distrun.runtime.collectives.point_to_point import messages
from distrun.runtime.collectives.point_to_point.connection import Connection
from distrun.runtime.transport.shared_memory import peer_process

scenario, victim = sys.argv[1], int(sys.argv[2])
peer_process.ending = partial(peer_process.ending, timeout=60.0)  # the test collects what it kills, sooner or later
distrun.init()
messages.prepare()
me, size = distrun.rank(), distrun.size()
others = [rank for rank in range(size) if rank != me]
small, large = np.ones(10, np.uint8), np.ones(20_000_000, np.uint8)


def say(text: str) -> None:
    print(text, flush=True)


def attempt(name: str, transfer) -> None:
    """Wait for a transfer, whose beginning may fail as well; say how it went."""
    try:
        transfer().wait()
    except distrun.DistrunError as error:
        say(f"{name}: {type(error).__name__}: {error}")
    else:
        say(f"{name}: done")


def receive(source: int, into: np.ndarray, tag: int = 0):
    return messages.receive(into.data, [source], "g", tag)


def send(destination: int, data: np.ndarray, tag: int = 0):
    return messages.send(data.data, destination, "g", tag)


def die_in_the_middle() -> None:
    """Be killed when a large message has left in part."""
    ordinary = Connection.flush

    def flush(connection: Connection) -> None:
        if all(data.nbytes <= 1_000_000 for data, _ in connection._unsent):
            ordinary(connection)
            return
        connection._socket.setblocking(True)
        for data, _ in connection._unsent:
            is_large = data.nbytes > 1_000_000
            connection._socket.sendall(data[: data.nbytes // 2] if is_large else data)
            if is_large:
                os.kill(os.getpid(), signal.SIGKILL)

    Connection.flush = flush


if scenario == "strangers":  # no message was ever sent
    say("ready")
    if me == victim:
        sys.stdin.readline()
    else:
        attempt("receive", lambda: receive(victim, small))
        attempt("again", lambda: send(victim, small))
elif scenario == "acquainted":
    for other in others:
        send(other, small, 1)
    for other in others:
        receive(other, small, 1).wait()
    say("ready")
    if me == victim:
        sys.stdin.readline()
    elif me == min(others[0], victim) or size == 2:
        attempt("send", lambda: send(victim, large))
    else:
        attempt("any", lambda: messages.receive(small.data, others, "g", 2))
elif scenario == "third":  # the rank that is waited for lives
    say("ready")
    if me == victim:
        sys.stdin.readline()
    else:
        attempt("receive", lambda: receive(min(rank for rank in others if rank != victim), small))
elif scenario == "middle":
    say("ready")
    if me == victim:
        die_in_the_middle()
        send(others[0], large).wait()
    else:
        attempt("receive", lambda: receive(victim, large))
elif scenario == "parting":  # what was sent before a rank left is received after it has
    if me == victim:
        for other in others:
            for tag in range(40):
                send(other, np.full(60_000, tag, np.uint8), tag)
            waiting = send(other, large, 50)
            receive(other, small, 60).wait()
        say("ready")
        sys.stdin.readline()
    else:
        receive(victim, large, 50).wait()
        send(victim, small, 60)
        say("ready")
        sys.stdin.readline()  # when it has left
        for tag in range(40):
            into = np.zeros(60_000, np.uint8)
            receive(victim, into, tag).wait()
            assert (into == tag).all()
        say("all is here")
        attempt("more", lambda: receive(victim, small))
elif scenario == "shutdown":
    transfers = [receive(others[0], small, 5), send(others[0], large)]
    threads = [
        threading.Thread(target=attempt, args=(f"wait {n}", lambda each=each: each)) for n, each in enumerate(transfers)
    ]
    for thread in threads:
        thread.start()
    distrun.barrier()
    distrun.shutdown()
    for thread in threads:
        thread.join()
    assert not [each for each in threading.enumerate() if "messages" in each.name or "dials" in each.name]
elif scenario == "fork":
    send(others[0], small, 1)
    receive(others[0], small, 1).wait()
    child = os.fork()
    if not child:
        attempt("child", lambda: send(others[0], small))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    send(others[0], large, 1)
    receive(others[0], large, 1).wait()
    distrun.barrier()
    say("parent: done")
elif scenario == "alone":
    attempt("send", lambda: messages.send(small.data, 0))
    attempt("receive", lambda: messages.receive(small.data, []))
    attempt("nobody", lambda: messages.receive(small.data, [1]))
    messages.prepare()
