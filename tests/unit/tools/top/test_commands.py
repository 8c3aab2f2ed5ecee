"""`distrun top --json` prints when speeds are known, and not for ever later if they never are."""

import json
from types import SimpleNamespace

import pytest

from distrun.runner.observation.live.snapshot import RankView, Snapshot
from distrun.tools.top import commands


@pytest.mark.parametrize(
    ("first_report", "seconds", "printed"),
    [(0, 60, 2), (3, 60, 5), (90, 60, 7), (0, 2, 1)],
    ids=["at once", "late", "never", "the job ends"],
)
def test_speeds_are_measured_for_two_seconds_from_the_first_report_on(
    monkeypatch, capsys, first_report, seconds, printed
):
    clock = SimpleNamespace(now=0)

    def snapshots(mode):
        for clock.now in range(seconds):
            ranks = (RankView(0, "a"),) if clock.now >= first_report else ()
            yield Snapshot("j", "c", 1, clock.now, ranks=ranks).to_json().encode()

    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: clock.now))
    commands._print_once(SimpleNamespace(makefile=snapshots), commands.Job("j", 1, 1, ["a"], "c", 0.0, None))
    assert json.loads(capsys.readouterr().out)["seconds"] == printed
