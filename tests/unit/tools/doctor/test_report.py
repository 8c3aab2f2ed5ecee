"""The report: its verdict, its JSON, its text and its tables, the pairs that are measured, and the commands by hand."""

import io
import json
from dataclasses import replace
from itertools import combinations

import pytest
from rich.console import Console

from distrun.runner.planning.ssh_config import Route, SshOptions
from distrun.tools.doctor import rendering
from distrun.tools.doctor.network.pair import rounds
from distrun.tools.doctor.report import HostCheck, HostReport, LinkReport, Report, Status
from distrun.tools.doctor.shell_commands import ShellCommands

GOOD = HostReport("a", True, (HostCheck("python", Status.OK, "3.11"),))
BAD = HostReport(
    "b",
    False,
    (HostCheck("tcp", Status.FAILED, "refused", "ssh b", "start sshd"), HostCheck("login", Status.NOT_TRIED)),
)
TOLD = {"text": "0.4 Gbit/s: too little", "command": "iperf3", "remedy": "buy"}
SLOW = LinkReport("a", "c", Status.WARNING, "10.0.0.1", "10.0.0.3", 1e-4, 5e7, **TOLD)
FAST = LinkReport("c", "a", Status.OK, "10.0.0.3", "10.0.0.1", 1e-4, 5e9, text="40 Gbit/s")
CLOSED = LinkReport("c", "a", Status.FAILED, "10.0.0.3", "10.0.0.1", text="c cannot connect to a", remedy="open it")


def test_the_worst_step_is_the_hosts():
    assert BAD.status is Status.FAILED
    assert HostReport("a", True, ()).status is Status.OK
    warned = [HostCheck("tcp", status) for status in (Status.OK, Status.NOT_TRIED, Status.WARNING)]
    assert replace(GOOD, steps=tuple(warned)).status is Status.WARNING


@pytest.mark.parametrize(
    ("report", "status", "summary"),
    [
        (Report((GOOD,)), 0, "1 host, nothing failed, no warning"),
        (Report((GOOD, GOOD), (SLOW, FAST)), 0, "2 hosts, nothing failed, 1 warning"),
        (Report((GOOD, BAD)), 1, "2 hosts, b failed at tcp, no warning"),
        (Report((GOOD, GOOD), (CLOSED, SLOW)), 1, "2 hosts, c cannot talk to a, 1 warning"),
    ],
)
def test_failures_and_not_warnings_decide_the_exit_status(report, status, summary):
    assert (report.exit_status, report.summary) == (status, summary)
    assert report.to_json()["ok"] is (status == 0)


def test_the_json_has_the_documented_members_and_no_others():
    found = json.loads(json.dumps(Report((GOOD, BAD), (SLOW, CLOSED), ("note",)).to_json()))
    assert list(found) == ["format", "distrun", "ok", "summary", "hosts", "links", "notes"]
    assert list(found["hosts"][0]) == ["host", "local", "status", "steps", "machine", "gpus", "gpu_checks"]
    assert found["hosts"][1]["steps"] == [
        {"step": "tcp", "status": "failed", "text": "refused", "command": "ssh b", "remedy": "start sshd"},
        {"step": "login", "status": "not tried", "text": "", "command": "", "remedy": ""},
    ]
    assert list(found["links"][0].items()) == [
        *(("from", "a"), ("to", "c"), ("status", "warning"), ("from_address", "10.0.0.1"), ("to_address", "10.0.0.3")),
        *(("round_trip_s", 1e-4), ("bytes_per_s", 5e7)),
        *(("packets_sent", None), ("packets_lost", None), ("largest_packet", None)),
        *TOLD.items(),
    ]
    assert found["links"][1]["bytes_per_s"] is None


def test_plain_text_tells_everything_in_order():
    assert rendering.plain(Report((GOOD, BAD), (SLOW, FAST), ("torch differs",))) == (
        "host a (this machine)\n"
        "  ok         python      3.11\n"
        "host b\n"
        "  failed     tcp         refused\n"
        "                         by hand: ssh b\n"
        "                         remedy: start sshd\n"
        "  not tried  login\n"
        "network\n"
        "  warning    a -> c  10.0.0.1 -> 10.0.0.3 (IPv4): 0.4 Gbit/s: too little\n"
        "                     by hand: iperf3\n"
        "                     remedy: buy\n"
        "  ok         c -> a  10.0.0.3 -> 10.0.0.1 (IPv4): 40 Gbit/s\n"
        "note: torch differs\n"
        "2 hosts, b failed at tcp, 1 warning\n"
    )


def on_terminal(report):
    file = io.StringIO()
    rendering.on_terminal(report, Console(file=file, force_terminal=True, width=120, color_system=None))
    return file.getvalue()


def test_the_tables_of_a_terminal_tell_the_same():
    odd = replace(BAD, host="fe80::1", steps=(HostCheck("tcp", Status.FAILED, "[red]not a style[/]"),))
    text = on_terminal(Report((GOOD, BAD, odd), (SLOW, FAST), ("torch differs",)))
    for words in ("a (this machine)", "by hand: ssh b", "not tried", "0.4 (100)", "40 (100)", "note: torch differs"):
        assert words in text
    assert "[red]not a style[/]" in text
    assert "remedy: buy" in text
    assert "failed" in on_terminal(Report((GOOD,), (CLOSED,)))


def test_many_hosts_are_listed_and_not_put_in_a_matrix():
    text = on_terminal(Report((GOOD,) * 20, (SLOW, FAST)))
    assert "a -> c" in text
    assert "c -> a" in text
    assert "from \\ to" not in text


@pytest.mark.parametrize("count", range(12))
def test_every_pair_is_measured_once_and_no_host_twice_at_a_time(count):
    found = rounds(count)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(count), 2))
    for pairs in found:
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs)


def test_of_many_hosts_each_is_measured_with_some():
    found = rounds(1000, 31)
    assert len(found) == 31
    assert all(len(pairs) == 500 for pairs in found)
    assert len({pair for pairs in found for pair in pairs}) == 31 * 500


ROUTE = Route("b", "10.0.0.7", 2222, "me", timeout=3)


@pytest.mark.parametrize(
    ("route", "step", "command"),
    [
        (ROUTE, "name", "getent ahosts 10.0.0.7"),
        (ROUTE, "tcp", "timeout 3 bash -c 'exec 3<>/dev/tcp/10.0.0.7/2222'"),
        (ROUTE, "host key", "ssh-keyscan -p 2222 10.0.0.7 | ssh-keygen -lf -"),
        (
            replace(ROUTE, arguments=tuple(SshOptions(2222, "/my key", ("User=me",)).arguments)),
            "login",
            "ssh -o BatchMode=yes -p 2222 -i '/my key' -o User=me me@b true",
        ),
        (ROUTE, "python", "ssh -o BatchMode=yes me@b 'python3 --version'"),
        (None, "directory", "ls -ld /some/place"),
        (None, "login", "true"),
        (replace(ROUTE, jump=Route("j", "j")), "tcp", "ssh -W 10.0.0.7:2222 j"),
        (replace(ROUTE, jump=Route("j", "j")), "host key", "ssh j ssh-keyscan -p 2222 10.0.0.7 | ssh-keygen -lf -"),
        (replace(ROUTE, proxy_command="nc a 1"), "tcp", "nc a 1"),
        (ROUTE, "no such step", ""),
    ],
)
def test_commands_by_hand(route, step, command):
    assert ShellCommands(route, "python3", "/some/place").step(step) == command
