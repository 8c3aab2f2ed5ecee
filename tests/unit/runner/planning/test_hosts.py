"""Host lists and host files are understood, or refused with a sentence that helps."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host, merge, parse_host, parse_host_list, parse_hostfile

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{1,5})?", fullmatch=True)
SLOTS = st.none() | st.integers(1, 10_000)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("localhost", Host("localhost")),
        ("worker-1.cluster:4", Host("worker-1.cluster", 4)),
        ("me@10.0.0.7:2", Host("10.0.0.7", 2, "me")),
        ("::1", Host("::1")),
        ("[::1]:3", Host("::1", 3)),
        ("[fe80::1%eth0]:8", Host("fe80::1%eth0", 8)),
    ],
)
def test_a_host_is_a_name_with_perhaps_a_user_and_slots(text, host):
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text", ["", "a b", "a:", "a:0", "a:-1", "a:x", "a:1:2", "@a", "a_%b", ":4", "[::1", "a,b", "-np"]
)
def test_what_is_no_host_is_quoted_with_what_is_allowed(text):
    with pytest.raises(UsageError, match="allowed are NAME") as error:
        parse_host(text)
    assert repr(text) in str(error.value)


@given(st.lists(st.tuples(NAMES, SLOTS), min_size=1, unique_by=lambda item: item[0]))
def test_a_host_list_is_the_inverse_of_printing_hosts(entries):
    hosts = [Host(name, slots) for name, slots in entries]
    assert parse_host_list(",".join(map(str, hosts))) == hosts


@given(st.lists(st.tuples(NAMES, SLOTS), min_size=1, unique_by=lambda item: item[0]), st.booleans())
def test_a_host_file_says_the_same_in_both_notations(entries, colon):
    hosts = [Host(name, slots) for name, slots in entries]
    lines = [
        name if slots is None else f"{name}:{slots}" if colon else f"{name} slots={slots} max_slots={slots + 1}  # fast"
        for name, slots in entries
    ]
    assert parse_hostfile("# our machines\n\n" + "\n   \n".join(lines)) == hosts


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_a_host_file_without_hosts_is_refused(text):
    with pytest.raises(UsageError, match="names no host"):
        parse_hostfile(text)


@pytest.mark.parametrize("line", ["a slots", "a slots=0", "a slots=x", "a gpus=0,0", "a b"])
def test_an_error_in_a_host_file_names_the_line(line):
    with pytest.raises(UsageError, match="nodes, line 2: "):
        parse_hostfile(f"first\n{line}\n", "nodes")


def test_a_host_listed_twice_has_the_slots_of_both():
    assert parse_host_list("a:1,b:2,a:3") == [Host("a", 4), Host("b", 2)]
    assert merge([Host("a", 1), Host("a")]) == [Host("a")]
