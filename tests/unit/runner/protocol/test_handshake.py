"""The first words between launcher and agent."""

import json
import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from distrun.host.endpoints import reserve_port
from distrun.host.interfaces import Interface
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import (
    MAGIC,
    Greeting,
    HostError,
    HostInfo,
    check_compatibility,
    describe_host,
    explain_failed_start,
    find_first_frame,
)

ANSWER = HostInfo("1.2.3", "3.11.4", 7, 4711, "", (Interface("eth0", "10.0.0.1", 24),), 4712, (4713, 4714))


def test_what_is_said_survives_the_journey_and_unknown_or_missing_words_do_no_harm():
    assert Greeting.from_json(Greeting(15.0, "/x\udcff").to_json()) == Greeting(15.0, "/x\udcff")
    newer = json.dumps({**json.loads(ANSWER.to_json()), "more": 1}).encode()
    assert HostInfo.from_json(newer) == ANSWER
    assert HostInfo.from_json(b'{"distrun": "0", "python": "3", "pid": 1, "port": 2}') == HostInfo("0", "3", 1, 2)


def test_the_answer_is_found_behind_the_noise_of_a_login_in_whatever_pieces_it_comes():
    whole = b"Welcome!\n\0\n" + MAGIC + Frame(FrameKind.HELLO, payload=ANSWER.to_json()).encode() + b"rest"
    found = [find_first_frame(whole[:end]) for end in range(len(whole) + 1)]
    assert found[-1] == (ANSWER.to_json(), b"rest")
    assert found.count(None) == len(whole) - len(b"rest")


def test_noise_without_end_is_an_error():
    with pytest.raises(HostError, match="prints without end"):
        find_first_frame(b"x" * 2_000_000)


def test_another_python_is_worth_a_sentence_and_another_distrun_is_an_error():
    assert check_compatibility(ANSWER, "python", "1.2.3", "3.11.9") == ""
    assert "3.11.4, and here is 3.12.0" in check_compatibility(ANSWER, "python", "1.2.3", "3.12.0")
    with pytest.raises(HostError, match=r"distrun 1.2.3 is installed there and 1.2.4 here; run there '/py -m pip"):
        check_compatibility(ANSWER, "/py", "1.2.4", "3.11.4")


def test_a_directory_that_is_missing_is_told():
    with reserve_port() as keeper:
        assert describe_host(Greeting(1.0, os.getcwd()), keeper).problem == ""
        assert "'/no/such'" in describe_host(Greeting(1.0, "/no/such"), keeper).problem


def test_the_answer_has_the_ports_it_was_asked_for():
    with reserve_port() as keeper:
        said = describe_host(Greeting(1.0, "/", 3), keeper)
    assert len({said.port, said.rendezvous, *said.ports}) == 5
    assert keeper.fileno() == -1


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (127, "bash: /py: No such file or directory\n", "Python '/py' cannot be started (bash: /py: No such file"),
        (126, "sh: /py: Permission denied", "--python"),
        (1, "Traceback...\nModuleNotFoundError: No module named 'distrun'\n", "run there '/py -m pip install "),
        (
            *(1, "Traceback...\nModuleNotFoundError: No module named 'psutil'\n"),
            "psutil, which distrun needs, is not installed for /py; run there '/py -m pip install psutil'",
        ),
        (1, "distrun needs Python 3.10 or newer, and this is 3.6.8\n", "this is 3.6.8 (/py); give the path of a newer"),
        (1, "This account is currently not available.\n", "(exit code 1): This account is currently not available."),
        (-1, "", "(no exit code): it wrote nothing"),
    ],
)
def test_an_agent_that_does_not_start_is_explained(status, output, expected):
    assert expected in explain_failed_start(status, output, "/py")


def test_an_agent_names_the_address_by_which_it_was_logged_in_to_though_its_interface_is_down(monkeypatch):
    address = SimpleNamespace(family=socket.AF_INET, address="10.0.0.2", netmask="255.0.0.0")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [address]})
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": SimpleNamespace(isup=False, flags="broadcast")})
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 41002 10.0.0.2 22")
    with reserve_port() as reservation:
        assert describe_host(Greeting(0.0, "/"), reservation).addresses == (("eth0", "10.0.0.2", 8),)
        monkeypatch.setenv("SSH_CONNECTION", "no connection")
        assert describe_host(Greeting(0.0, "/"), reservation).addresses == ()
