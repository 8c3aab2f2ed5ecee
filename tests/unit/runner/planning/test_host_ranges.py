"""Lists of hosts with ranges of numbers are expanded, or refused."""

import re

import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.runner.planning.host_ranges import expand


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
