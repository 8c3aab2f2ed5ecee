"""The report of real jobs: that end well, fail, or are interrupted; and its page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from histories.job_summary import rank_of, summary_of
from running_distrun import python_command
from session.tiers import one_in_gate
from shell import wait_until

from distrun.runner.observation.report.page import page

TRAINING = Path(__file__).parent / "programs" / "training.py"
DEADLINE = 120.0  # seconds; a browser takes its time on a busy machine
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def train(distrun, tmp_path):
    """Starts a training on two ranks, of which rank 1 loads its data more slowly, with a report."""

    def start(*arguments: str, **environ: str):
        options = ("-np", "2", "--report", str(tmp_path / "report.html"))
        return distrun(*options, sys.executable, str(TRAINING), *arguments, **environ)

    return start


def read(folder: Path) -> ElementTree.Element:
    """Return the report in a folder, beside which nothing else has been left."""
    assert {path.name for path in folder.iterdir()} == {"report.html", "tmp"}
    return ElementTree.fromstring((folder / "report.html").read_text().removeprefix("<!DOCTYPE html>\n"))


def plots_of(document: ElementTree.Element) -> set[str]:
    """Return the titles of the plots."""
    return {plot.find("{*}title").text for plot in document.iter("{http://www.w3.org/2000/svg}svg")}


def test_a_job_that_ends_well(train, tmp_path):
    job = train("--seconds", "6", "--late", "0.05", DISTRUN_KEY="s" * 40, OTHER_SECRET="t" * 40)
    assert b"the report is in " in job.ended(0, DEADLINE)
    document = read(tmp_path)
    assert "ended well" in document.find("body/header/p").text
    assert "Where a step goes, per rank" in plots_of(document)
    finding = "".join(document.find(".//main/p").itertext())
    assert finding.startswith("Held up by one rank: rank 1 on localhost costs every step ")
    assert "it waits for its input" in finding
    text = (tmp_path / "report.html").read_text()
    assert "s" * 40 not in text
    assert "t" * 40 not in text


@pytest.mark.gate
def test_a_job_that_fails(train, tmp_path):
    said = train("--seconds", "3", "--fails").ended(1, DEADLINE)
    document = read(tmp_path)
    assert "failed with exit status 1" in document.find("body/header/p").text
    report = document.find(".//pre").text
    assert said.decode().endswith(f"{report}\n")
    assert "ValueError: no <such> sample" in report
    assert "Where a step goes, per rank" in plots_of(document)


def test_a_job_that_is_interrupted(train, tmp_path):
    job = train("--seconds", "1000")
    job.stdout.wait_for(b"step 100 done")
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait(DEADLINE) == 130
    document = read(tmp_path)
    assert "was interrupted by SIGINT" in document.find("body/header/p").text
    assert "Where a step goes, per rank" in plots_of(document)


COUNTED = """
import sys, time, distrun
from pathlib import Path
from distrun.tracing import recording

def steps(seconds):
    end, done = time.monotonic() + seconds, 0
    while distrun.allreduce(float(time.monotonic() < end), name="goes on", op=distrun.Min):
        time.sleep(0.005)
        recording.step_done()
        done += 1
    return done

distrun.init()
done = steps(1)
print("begun", flush=True)
while not distrun.allreduce(float(Path(sys.argv[1], "stopped").exists()), name="stopped", op=distrun.Min):
    time.sleep(0.01)
done += steps(float(sys.argv[2]))
Path(sys.argv[1], f"done {distrun.rank()}").touch()
print(f"made {done + steps(1)}", flush=True)
"""


@pytest.mark.parametrize("seconds", one_in_gate(3, 8))  # 8: the host counts as lost in the meantime
def test_the_steps_of_ranks_whose_agent_is_stopped_count(distrun, tmp_path, seconds):
    page = tmp_path / "report.html"
    job = distrun("-np", "2", "--report", str(page), *python_command(COUNTED), str(tmp_path), str(seconds))
    job.stdout.wait_for(b"begun", times=2)
    agent = job.agent()
    agent.suspend()
    (tmp_path / "stopped").touch()
    wait_until(lambda: len(list(tmp_path.glob("done *"))) == 2)
    agent.resume()
    job.ended(0, DEADLINE)
    (made,) = set(re.findall(r"made (\d+)", job.stdout.text))
    text = page.read_text()
    assert re.findall(r"<td>\d</td><td>localhost</td><td>(\d+)</td>", text) == [made, made]
    assert f"<dt>steps</dt><dd>{int(made):,}</dd>" in text
    assert "not counted" not in text


@pytest.mark.gate
def test_a_job_that_tells_nothing_has_a_report_that_says_so(distrun, tmp_path):
    distrun("-np", "2", "--report", str(tmp_path / "report.html"), "true").ended(0)
    document = read(tmp_path)
    assert "not known" in "".join(document.find(".//main/p").itertext())


@pytest.mark.gate
def test_a_report_that_cannot_be_written_at_the_end_changes_no_exit_status(distrun, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    job = distrun("-np", "1", "--report", str(folder / "report.html"), "rmdir", str(folder))
    assert "the report could not be written to" in job.ended(0).decode()


# In a real browser ----------------------------------------------------------------------------------------------------


def browse(folder: Path, *arguments: str) -> bytes:
    """Open folder/page.html in a browser without a window and return what it prints."""
    if BROWSER is None:
        pytest.skip("there is no chromium")
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,2400"]
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [BROWSER, *common, profile, *arguments, (folder / "page.html").as_uri()]
    return subprocess.run(command, capture_output=True, timeout=DEADLINE, check=True).stdout


PROFILE = {"name": "</script><script>document.title='executed'</script>"}


@pytest.fixture
def shown(tmp_path):
    """A folder with a page that has everything."""
    summary = summary_of(rank_of(0, waiting=0.018), rank_of(1, input=0.02))
    (tmp_path / "page.html").write_text(page(replace(summary, profile=PROFILE)))
    return tmp_path


def test_a_browser_finds_the_plots_and_a_profile_that_is_not_executed(shown):
    document = browse(shown, "--dump-dom").decode()
    assert document.count("<svg") == 4
    assert '<title id="steps-of-ranks-title">' in document
    assert "<title>executed" not in document
    raw = re.search(r'id="distrun-profile">(.*?)</script>', document, re.DOTALL)[1]
    assert json.loads(raw) == PROFILE


def test_a_browser_draws_it_in_light_and_in_dark(shown):
    numpy = pytest.importorskip("numpy")
    image = pytest.importorskip("PIL.Image")
    means = []
    for name, arguments in (("light", ()), ("dark", ("--blink-settings=preferredColorScheme=0",))):
        browse(shown, f"--screenshot={shown / name}.png", *arguments)
        pixels = numpy.asarray(image.open(shown / f"{name}.png").convert("RGB")).reshape(-1, 3)
        assert len(numpy.unique(pixels, axis=0)) > 100  # plots, text, and their soft edges
        means.append(pixels.mean())
    assert means[0] > 200
    assert means[1] < 60


def test_a_browser_prints_it_on_paper(shown):
    browse(shown, f"--print-to-pdf={shown / 'page.pdf'}")
    data = (shown / "page.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 6
    assert len(data) > 10_000
