"""The user's script that lists the hosts."""

from __future__ import annotations

import queue
import threading

import pytest

from distrun.errors import UsageError
from distrun.runner.decisions.events import HostsFound
from distrun.runner.elastic.discovery import Discovery, parse_listing
from distrun.runner.elastic.host_list import HostList
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.ssh_config import Route

pytestmark = pytest.mark.gate

DEADLINE = 60.0


def resolve(hosts):
    return list(hosts), {host.name: Route(host.name, host.name) for host in hosts if host.name not in ("here", "me")}


@pytest.fixture
def watched(tmp_path):
    """Runs a script, which reads what the test writes; gives events and messages."""
    script, listing = tmp_path / "hosts.sh", tmp_path / "listing"
    listing.write_text("a:2\n")
    script.write_text(f"#!/bin/sh\ncat {listing} && test ! -e {tmp_path}/fail\n")
    script.chmod(0o755)
    events, said = queue.Queue(), queue.Queue()
    discovery = Discovery(str(script), HostList(resolve), interval=0.01)
    discovery.start(events.put, said.put)
    yield tmp_path, listing, events, said
    discovery.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "distrun discovery"]


def test_changes_are_told_and_nothing_else(watched):
    _, listing, events, _ = watched
    assert events.get(timeout=DEADLINE) == HostsFound({"a": 2})
    for text, slots in (("a:2\nb\n", {"a": 2, "b": 1}), ("b\n", {"b": 1}), ("", {})):
        new = listing.with_suffix(".new")
        new.write_text(text)
        new.replace(listing)
        assert events.get(timeout=DEADLINE) == HostsFound(slots)
    assert events.empty()


def test_an_error_is_told_once_and_the_last_list_stays(watched):
    folder, listing, events, said = watched
    events.get(timeout=DEADLINE)
    (folder / "fail").touch()
    assert said.get(timeout=DEADLINE).endswith("failed with status 1; the last list of hosts stays")
    (folder / "new").write_text("a:two\n")
    (folder / "new").replace(listing)  # a script that is at it finds the one or the other, and no empty file
    (folder / "fail").unlink()
    assert "'a:two'" in said.get(timeout=DEADLINE)
    assert said.empty()
    assert events.empty()


def test_a_script_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    discovery = Discovery("sleep 1000 & sleep 1000", HostList(resolve), timeout=0.1)
    with pytest.raises(UsageError, match=r"took longer than 0\.1 s"):
        discovery.list_hosts()


def test_a_script_that_does_not_exist_costs_a_sentence():
    with pytest.raises(UsageError, match="failed with status 127"):
        Discovery("no-such-program-at-all", HostList(resolve)).list_hosts()


def test_the_list_of_the_check_is_the_first(tmp_path):
    (tmp_path / "hosts").write_text("a:2\n")
    discovery = Discovery(f"cd {tmp_path} && mv hosts seen && cat seen || echo b", HostList(resolve), interval=0.01)
    discovery.check()
    events, said = queue.Queue(), queue.Queue()
    discovery.start(events.put, said.put)
    assert [events.get(timeout=DEADLINE).slots for _ in range(2)] == [{"a": 2}, {"b": 1}]
    discovery.close()


def test_the_listing_may_be_horovods_or_anything_that_a_host_list_may_hold():
    text = "# the hosts\nh1:2\n\nme@h2  # another account\nnode[01-02]:4\ngpu:[0,2]\n"
    assert parse_listing(text, "x") == [
        Host("h1", 2),
        Host("h2", None, "me"),
        Host("node01", 4),
        Host("node02", 4),
        Host("gpu", 2, None, ("0", "2")),
    ]
    with pytest.raises(UsageError, match="--hosts-from 'x' printed 'h1:0'"):
        parse_listing("h1:0", "x")


def test_this_machine_keeps_its_first_name():
    hosts = HostList(resolve, default_slots=3)
    assert hosts.add([Host("here"), Host("a", 1)]) == {"here": 3, "a": 1}
    assert hosts.add([Host("a", 1), Host("me", 2)]) == {"a": 1, "here": 2}
    assert hosts["here"] == (Host("here", 2), None)
    assert hosts["a"] == (Host("a", 1), Route("a", "a"))
