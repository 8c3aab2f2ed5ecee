"""Both families of addresses are tried between two hosts, whichever the measurement takes."""

from __future__ import annotations

from typing import Any

import pytest

from distrun.host.interfaces import Interface
from distrun.runner.protocol.handshake import HostError
from distrun.tools.doctor.network.pair import ProbedHost, measure_pair
from distrun.tools.doctor.report import Status
from distrun.tools.doctor.shell_commands import ShellCommands

A, B = ("10.0.0.1", "fd00::1"), ("10.0.0.2", "fd00::2")


class Probe:
    """A probe on a network that drops new connections to some addresses."""

    def __init__(self, own: tuple[str, str], dropped: set[str]) -> None:
        self._own, self._dropped = own, dropped

    def ask(self, what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        if what == "listen":
            return {"port": 1}
        if what == "stop_listening":
            return {"rate": 1e9, "sent": 1000, "lost": 0}
        address = arguments["address"]
        if address in self._dropped:
            raise HostError("no answer within 4 s")
        ours = self._own[":" in address]
        return {"address": ours, "round_trip": 1e-4, "rate": 1e9, "sent": 1000, "lost": 0}


def links(dropped: set[str], network: str = ""):
    def host(name: str, own: tuple[str, str]) -> ProbedHost:
        interfaces = [Interface("eth0", own[0], 24), Interface("eth0", own[1], 64), Interface("eth1", f"{own[0]}9", 32)]
        probe: Any = Probe(own, dropped)
        return ProbedHost(name, probe, interfaces, ShellCommands(None, "python", "."))

    return {link.source: link for link in measure_pair(host("a", A), host("b", B), network, 2)}


def test_all_is_well_where_both_families_answer():
    assert {link.status for link in links(set()).values()} == {Status.OK}


@pytest.mark.parametrize("target", [A, B])
@pytest.mark.parametrize("family", [0, 1])
def test_a_family_that_is_dropped_is_named_though_the_other_one_answers(target, family):
    found = links({target[family]})
    here, there = ("b", "a") if target is A else ("a", "b")
    assert found[there].status is Status.OK
    assert found[here].status is Status.WARNING
    name = "IPv6" if family else "IPv4"
    assert f"; but {here} cannot connect to {there} at {target[family]} ({name}: no answer" in found[here].text
    assert f"open the firewall of {there} for {name} too" in found[here].remedy
    assert found[here].command.endswith(f"ping -c 3 {target[family]}")


def test_a_family_that_is_not_to_be_used_is_not_tried():
    assert {link.status for link in links({A[0], B[0]}, "fd00::/16").values()} == {Status.OK}
    assert links({A[0], B[0]}, "fd00::/16")["a"].target_address == B[1]
