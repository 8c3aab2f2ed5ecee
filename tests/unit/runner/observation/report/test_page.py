"""The page of a report: well-formed, complete in itself, and readable in light and dark."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from histories.job_summary import rank_of, summary_of

from distrun.runner.observation.report.histogram import Histogram
from distrun.runner.observation.report.page import page
from distrun.runner.observation.report.plots import distribution, scaling
from distrun.runner.observation.report.style import COLOURS
from distrun.runner.observation.report.summary import RankSummary, Scale, Scaling
from distrun.runner.observation.report.svg import WIDTH, bits

NAMESPACE = "{http://www.w3.org/2000/svg}"
NASTY = "distrun -np 2 python train.py --name '</title><script>alert(1)</script>' \"&amp;\" \udcff\x07"


def parsed(text: str) -> ElementTree.Element:
    """Return the document; the page is well-formed as XML, too, but for its declaration."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


@pytest.fixture
def summary():
    """A job of two ranks, one of which is waited for."""
    late = replace(rank_of(1, input=0.02), held_up=0.018)
    return summary_of(rank_of(0, waiting=0.018), late)


def test_it_is_well_formed_and_has_all_plots_with_a_title_and_a_description_that_their_labels_name(summary):
    plots = set()
    for plot in parsed(page(summary)).iter(f"{NAMESPACE}svg"):
        assert plot.get("role") == "img"
        title, description = (plot.find(f"{NAMESPACE}{name}") for name in ("title", "desc"))
        assert plot.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert description.text.endswith(".")
        plots.add(title.text)
    assert plots == {
        "Where a step goes, per rank",
        "Distribution of step times",
        "Steps per second, and where the time went, over the job",
        "For whom the others wait",
        "Scaling efficiency on more hosts",
    }


def test_nothing_is_fetched_and_nothing_is_executed(summary):
    text = page(replace(summary, profile={"step": 0.04}))
    assert not re.search(r"(src|href|action|data|poster|srcset)\s*=|url\(|@import|<link|<iframe|\bon\w+=", text)
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/json" id="distrun-profile">']
    assert "default-src 'none'" in text


def test_what_others_wrote_is_text_and_nothing_else(summary):
    text = page(replace(summary, title=NASTY, command=NASTY, failure_report=NASTY, status=1, settings={NASTY: NASTY}))
    text.encode()
    document = parsed(text)
    assert list(document.iter("script")) == []
    assert "</title><script>alert(1)</script>" in document.find("body/header/h1").text
    assert "�" in document.find("body/header/h1").text
    assert document.find("body/header/p/code").text.startswith("distrun -np 2 python train.py --name '</title>")


def test_its_title_is_short_and_the_command_line_is_below_it(summary):
    document = parsed(page(summary))
    assert document.find("head/title").text == "distrun: train.py, job d4d187d2"
    assert document.find("body/header/h1").text == "train.py, job d4d187d2"
    assert document.find("body/header/p/code").text == "distrun -np 2 python train.py"


def test_on_a_phone_tables_and_plots_scroll_in_boxes_of_their_own(summary):
    document = parsed(page(summary))
    scrolling = {one for box in document.iter("div") if box.get("class") == "wide" for one in box}
    assert scrolling >= {*document.iter("table"), *document.iter(f"{NAMESPACE}svg")}


@pytest.mark.parametrize("slow", [1, 40, 60, 400])
def test_no_line_crosses_the_labels_of_median_and_95_percent(slow):
    steps = Histogram()
    for number in range(1000):
        steps.add(0.04 if number < 1000 - slow else 0.041 + 0.001 * (number % 40))
    plot = parsed(distribution(steps))
    labels = [(text, float(text.get("x")), float(text.get("y"))) for text in plot if text.get("class") == "label"]
    assert [text.text.split()[0] for text, _, _ in labels] == ["median", "95"]
    lines = [[float(line.get(name)) for name in ("x1", "y1", "y2")] for line in plot if line.get("class") == "mark"]
    highest = min(float(bar.get("y")) for bar in plot if bar.tag.endswith("rect"))
    for text, x, y in labels:
        width = 8 * len(text.text)
        begin, end = (x - width, x) if text.get("text-anchor") == "end" else (x, x + width)
        assert [line for line in lines if begin < line[0] < end and line[1] < y - 3] == []
        assert y + 4 < highest
    assert abs(labels[0][2] - labels[1][2]) > 15


@pytest.mark.parametrize("efficiencies", [(0.46, 0.52, 0.46), (1.0, 0.99, 1.0), (0.01, 0.0, 0.02)])
def test_labels_of_scaling_stay_in_the_plot_and_apart(efficiencies):
    scales = [Scale(1 << n, 1 << n, 2 << n, 80.0, share, 0.1 * n) for n, share in enumerate(efficiencies)]
    labels = [text for text in parsed(scaling(scales)) if "step" in (text.text or "") and text.tag.endswith("text")]
    places = [(float(text.get("x")), 4 * len(text.text)) for text in labels]
    edges = [0, *(edge for x, half in places for edge in (x - half, x + half)), WIDTH]
    assert edges == sorted(edges)
    assert all(text.get("text-anchor") == "middle" and float(text.get("y")) > 10 for text in labels)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0, "0 bit/s"), (27.75, "222 bit/s"), (1e4, "80 kbit/s"), (124_960_000, "1000 Mbit/s"), (1.5e9, "12 Gbit/s")],
)
def test_a_rate_is_in_a_unit_that_fits_it(rate, text):
    assert bits(rate) == text


def test_the_profile_comes_back_whatever_is_in_it(summary):
    profile = {"name": "</script><b>&", "steps": [1, 2.5]}
    text = page(replace(summary, profile=profile))
    assert text.count("</script>") == 1
    assert json.loads(re.search(r'id="distrun-profile">(.*?)</script>', text, re.DOTALL)[1]) == profile


def test_the_bars_of_a_rank_are_as_long_as_its_shares(summary):
    plot = next(parsed(page(summary)).iter(f"{NAMESPACE}svg"))
    bars = [bar for bar in plot.iter(f"{NAMESPACE}rect") if bar.get("class").startswith("segment")]
    second = [float(bar.get("width")) for bar in bars if bar.find(f"{NAMESPACE}title").text.startswith("rank 1:")]
    step = summary.ranks[1].seconds
    expected = [step[name] for name in ("input", "forward", "backward", "optimizer", "other")] + [0.0, step["moving"]]
    scale = sum(second) / summary.ranks[1].step
    assert second == pytest.approx([seconds * scale for seconds in expected], abs=0.11)


def test_a_failure_is_told_as_it_was_printed(summary):
    report = "distrun: rank 1 on h1 exited with code 1\ndistrun: its last lines on stderr:\n    <ValueError>"
    document = parsed(page(replace(summary, status=1, ending="failed with exit status 1", failure_report=report)))
    assert document.find(".//pre").text == report
    assert "failed with exit status 1" in document.find("body/header/p").text


def test_a_job_without_steps_has_a_page(summary):
    ranks = [RankSummary(0, "h0", 0, 0, {}), RankSummary(1, "h1", 0, 0, {})]
    document = parsed(page(replace(summary, ranks=ranks, moments=(), scaling=Scaling())))
    assert "not known" in "".join(document.find(".//main/p").itertext())
    assert list(document.iter(f"{NAMESPACE}svg")) == []


def test_a_thousand_ranks_make_no_page_of_a_thousand_rows(summary):
    ranks = [replace(rank_of(number), held_up=0.001 * (number == 777)) for number in range(1000)]
    text = page(replace(summary, ranks=ranks))
    assert "64 of 1000 ranks" in text
    assert "rank 777 " in text
    assert len(text) < 300_000


@pytest.mark.parametrize("is_dark", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough_for_reading(is_dark):
    """4.5 for text and 3 for what is drawn: WCAG 2.2, level AA."""
    colours = {name: pair[is_dark] for name, pair in COLOURS.items()}
    for name, colour in colours.items():
        if name in ("ink", "faint"):
            assert min(contrast(colour, colours["paper"]), contrast(colour, colours["card"])) >= 4.5
        elif name not in ("paper", "card", "line", "on"):
            assert contrast(colour, colours["paper"]) >= 3
            assert contrast(colour, colours["on"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
