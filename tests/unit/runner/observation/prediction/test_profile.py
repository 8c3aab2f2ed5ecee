"""Profiles: they survive JSON, are found in timelines and reports, and an impossible value is named."""

import gzip
import json

import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.runner.observation.prediction import reading, units
from distrun.runner.observation.prediction.profile import Gradients, JobProfile, MeasuredLink, StepSeconds
from distrun.runner.observation.prediction.reading import read

TIMES = st.floats(0, 1e3)
SIZES = st.floats(0, 1e12)
GRADIENTS = st.builds(Gradients, SIZES, TIMES, SIZES, st.none() | TIMES)
LINKS = st.none() | st.builds(MeasuredLink, st.floats(1e3, 1e13), st.none() | TIMES)
PROFILES = st.builds(
    lambda hosts, per_host, *rest: JobProfile(hosts * per_host, hosts, per_host, *rest),
    st.integers(1, 1000),
    st.integers(1, 16),
    st.integers(1, 10_000),
    st.builds(StepSeconds, TIMES, TIMES, TIMES, TIMES, TIMES, TIMES, st.none() | TIMES),
    TIMES,
    TIMES,
    st.sampled_from(["float32", "bfloat16"]),
    st.lists(GRADIENTS).map(tuple),
    LINKS,
)
SMALL = {
    "format": 1,
    "ranks": 2,
    "hosts": 2,
    "seconds": {"step": 0.4, "forward": 0.1, "backward": 0.2},
    "gradients": [{"bytes": 4e6, "ready": 0.2}],
}


@given(PROFILES)
def test_a_profile_survives_json(profile):
    assert JobProfile.from_json(json.loads(json.dumps(profile.to_json())), "x") == profile


def test_what_is_left_out_has_a_default():
    profile = JobProfile.from_json(SMALL, "x")
    assert (profile.ranks_per_host, profile.gradients) == (1, (Gradients(4e6, 0.2, 4e6, None),))
    assert (profile.link, profile.jitter, profile.wire, profile.seconds.input) == (None, 0, "float32", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "has format 2, but this distrun reads format 1"),
        ({"ranks": 0}, "ranks of the profile in x is 0, but must be a whole number >= 1"),
        ({"ranks": True}, "ranks of the profile in x is True"),
        ({"ranks": 9, "ranks_per_host": 2}, "9 ranks on 2 hosts with at most 2 each"),
        ({"seconds": {"step": 1, "forward": -1}}, "forward of seconds of the profile in x is -1"),
        ({"seconds": {"step": 1, "forward": float("nan")}}, "is nan, but must be a number >= 0"),
        ({"seconds": [1]}, "seconds of the profile in x is [1], but must be an object"),
        ({"seconds": {"step": 1, "forward": 1}}, "backward of seconds of the profile in x is missing"),
        ({"gradients": {}}, "gradients of the profile in x is {}, but must be a list"),
        ({"gradients": [{"bytes": 1, "ready": "x"}]}, "ready of gradients[0] of the profile in x is 'x'"),
        ({"link": {"bits_per_s": 0}}, "bits_per_s of link of the profile in x is 0.0, but must be a number > 0"),
    ],
)
def test_what_cannot_be_is_told_by_name(change, words):
    with pytest.raises(UsageError) as caught:
        JobProfile.from_json(SMALL | change, "x")
    assert words in str(caught.value)


def trace(events, profile=SMALL, before=True):
    """The text of a timeline; the profile stands before its events, or behind them."""
    inside = [{"name": 'an event called "distrunProfile": {}', "ph": "X", "ts": number} for number in range(events)]
    members = [("traceEvents", inside), ("distrunProfile", profile)]
    return json.dumps(dict(members[::-1] if before else members))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_large_timeline_is_searched_piece_by_piece(tmp_path, monkeypatch, before, is_compressed):
    monkeypatch.setattr(reading, "_CHUNK", 1000)  # many pieces; some end within the member's name
    for events in range(300, 330):
        file = tmp_path / f"trace-{events}.json"
        text = trace(events, before=before).encode()
        file.write_bytes(gzip.compress(text) if is_compressed else text)
        assert read(str(file)) == JobProfile.from_json(SMALL, "x")


def test_a_report_and_a_profile_alone_are_read(tmp_path):
    page = tmp_path / "report.html"
    page.write_text(
        "<!doctype html><p>distrunProfile</p>"
        f'<script type="application/json" id="distrun-profile">{json.dumps(SMALL)}</script>'
    )
    alone = tmp_path / "profile.json"
    alone.write_text(json.dumps(SMALL))
    assert read(str(page)) == read(str(alone)) == JobProfile.from_json(SMALL, "x")


@pytest.mark.parametrize(
    ("words", "contents"),
    [
        (
            "holds no profile of a job: give a timeline that has",
            [b"", b"{}", b"[1, 2]", b"<html></html>", b'{"traceEvents": []}', b"text"],
        ),
        ("cannot be read", [b"\x1f\x8b\x08cut off", b"\xff\xfe\x00"]),
    ],
)
def test_a_file_that_is_broken_or_without_a_profile_is_refused(tmp_path, words, contents):
    for content in contents:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read(str(tmp_path / "file"))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        read(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot be read"):
        read(str(tmp_path))


def test_speeds_and_delays_are_read_with_their_units():
    assert [units.bits_per_second(text) for text in ("25gbit", "1.5Gbit/s", "940 mbps", "10G")] == [
        25e9,
        1.5e9,
        940e6,
        10e9,
    ]
    assert [units.seconds(text) for text in ("50us", "1.5ms", "0s")] == pytest.approx([50e-6, 1.5e-3, 0])


@pytest.mark.parametrize(
    ("parse", "remedy", "texts"),
    [
        (units.bits_per_second, "25gbit", ["", "25", "3GB/s", "0gbit", "-1gbit", "gbit", "1gbite", "infgbit"]),
        (units.seconds, "50us", ["", "50", "-1us", "1min"]),
    ],
)
def test_a_speed_or_a_delay_without_its_unit_is_refused(parse, remedy, texts):
    for text in texts:
        with pytest.raises(UsageError, match=remedy):
            parse(text)
