"""Host lists and host files are understood, or refused with a sentence that helps."""

import re

import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.runner.elastic.discovery import parse_listing
from distrun.runner.planning.hosts import Host, expand, merge, parse_host, parse_host_list, parse_hostfile

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z]{1,5})?", fullmatch=True)
SLOTS = st.none() | st.integers(1, 1000)


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
    assert merge([Host("a", 1), Host("a")]) == [Host("a", 2)]
    assert merge([Host("a"), Host("a", 0)]) == [Host("a")]
    assert merge([Host("a"), Host("a"), Host("a", 0)]) == merge([Host("a"), Host("a")])


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h[1-3]", [Host("h1"), Host("h2"), Host("h3")]),
        ("node[01-02,07]:4", [Host("node01", 4), Host("node02", 4), Host("node07", 4)]),
        ("me@n[1-2]-ib:[0,2]", [Host("n1-ib", 2, "me", ("0", "2")), Host("n2-ib", 2, "me", ("0", "2"))]),
        ("a:1,r[1-2]n[1-2]", [Host("a", 1), Host("r1n1"), Host("r1n2"), Host("r2n1"), Host("r2n2")]),
        ("n[1-2]:1,n[2-3]:1", [Host("n1", 1), Host("n2", 2), Host("n3", 1)]),
    ],
)
def test_a_range_of_numbers_is_many_hosts(text, hosts):
    assert parse_host_list(text) == hosts
    assert parse_hostfile(re.sub(r",(?![^\[]*\])", "\n", text)) == hosts


@pytest.mark.parametrize("text", ["n[2-1]", "n[x]:2", "n[1", "n[]", "n[1-2]:0", "n[1-2]n:x"])
def test_what_is_no_range_is_quoted(text):
    with pytest.raises(UsageError, match=r"is not a host|gives"):
        parse_host_list(text)


@pytest.mark.parametrize("text", ["a,b,", "a,,b", ",a", "", ","])
def test_a_comma_too_many_is_told(text):
    with pytest.raises(UsageError, match=r"has a comma too many|names no host"):
        parse_host_list(text)


def test_the_mark_with_which_some_editors_begin_a_file_is_no_part_of_a_name():
    assert parse_hostfile("\ufeffa slots=2\nb\n") == [Host("a", 2), Host("b")]
    assert parse_host_list("\ufeffa:2") == [Host("a", 2)]


def test_open_mpi_and_mpich_write_slots_in_several_ways():
    text = "a slots = 2 max_slots = 4\nb count=2\nc:2\nd slots=2 slots_max=3"
    assert parse_hostfile(text) == [Host(name, 2) for name in "abcd"]


@pytest.mark.parametrize("text", ["a:99999999999", f"a:{'9' * 5000}", "a:8192,a:1", "a:8193", "a[1-3]:99999999999"])
def test_more_slots_than_any_machine_has_are_refused(text):
    with pytest.raises(UsageError, match="8192"):
        parse_host_list(text)
    with pytest.raises(UsageError, match="8192"):
        parse_hostfile("\n".join(f"{host} slots={slots}" for host, slots in (e.split(":") for e in text.split(","))))
    with pytest.raises(UsageError, match=r"--hosts-from './find' printed|a has 8193 slots in all"):
        parse_listing(text.replace(",", "\n"), "./find")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("login-1.cluster.org", "login-1.cluster.org"),
        ("node[01-04,07]", "node01 node02 node03 node04 node07"),
        ("n[1-2,07]", "n1 n2 n07"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[008-011]", "n008 n009 n010 n011"),
        ("n[0-1]", "n0 n1"),
        ("gpu[1-2]-[0-1]", "gpu1-0 gpu1-1 gpu2-0 gpu2-1"),
        ("r[1-2]n[1-2]x,z", "r1n1x r1n2x r2n1x r2n2x z"),
        ("a[1,3]b,c[2],d", "a1b a3b c2 d"),
    ],
)
def test_slurm_lists_are_expanded(text, names):
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "a,", "a[1", "a1]", "a[]", "a[2-1]", "a[1-]", "a[x]", "a[[1]]", "a[1-2-3]"]
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        expand(text)


@pytest.mark.parametrize("text", ["n[0-99999999999]", "n[0-999][0-999]"])
def test_a_list_without_end_is_refused(text):
    with pytest.raises(UsageError, match="more than 65536 hosts"):
        expand(text)


@given(st.lists(st.tuples(st.text("abc", min_size=1), st.integers(0, 9999), st.integers(0, 20), st.integers(1, 6))))
def test_ranges_have_as_many_names_as_numbers(elements):
    text = ",".join(f"{name}[{first:0{width}}-{first + more:0{width}}]" for name, first, more, width in elements)
    names = expand(text) if text else []
    expected = [f"{n}{number:0{w}}" for n, first, more, w in elements for number in range(first, first + more + 1)]
    assert [re.sub("([a-c])0*(?=[0-9])", r"\1", name) for name in names] == [
        re.sub("([a-c])0*(?=[0-9])", r"\1", name) for name in expected
    ]
    assert all(name in expected for name in names)
