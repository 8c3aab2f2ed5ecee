"""The live view: its lines for terminals of any size, and where there is none."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from histories.training import MS, START, event

from distrun.errors import UsageError
from distrun.runner.observation.consumer import Source
from distrun.runner.observation.live.hub import Hub
from distrun.runner.observation.live.sentences import clock, from_script, number, sentence, size
from distrun.runner.observation.live.snapshot import HostView, RankView, Slow, Snapshot, TimeShares, snapshot
from distrun.runner.observation.live.tables import lines
from distrun.runner.observation.live.view import LINE_EVERY, PlainView
from distrun.runner.observation.model.model import Model
from distrun.runner.planning.plan import AgentPlan, LaunchPlan
from distrun.tools.top import commands
from distrun.tracing.layout import DONE, OTHER, STEP, WAITED

SLOW = Slow(3, "rank 3 on h2 costs every step 19 ms (16 %): it waits for its input", stands=False)


def job(size: int, hosts: int = 1, slow: tuple[Slow, ...] = (SLOW,)) -> Snapshot:
    shares = TimeShares(0.6, 0.05, 0.2, 0.05, 0.05, 0.05)
    ranks = tuple(
        RankView(rank, f"h{rank * hosts // size + 1}", 100, 12.5, 400.0, shares, 3, 98.0, 10**9, line=f"loss {rank}")
        for rank in range(size)
    )
    return Snapshot("j", "python train.py", size, 61.0, 88.0, ranks, (HostView("h1", 50, 40, 1e6, 2e6),), slow)


def plain(text: list[str]) -> list[str]:
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text]


@pytest.mark.parametrize(("size", "hosts"), [(1, 1), (4, 2), (16, 2), (64, 8), (512, 64)])
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (200, 100), (40, 10)])
def test_any_job_fits_any_terminal(size, hosts, columns, rows):
    shown = plain(lines(job(size, hosts), columns, rows))
    assert len(shown) < rows
    assert all(len(line) <= columns for line in shown)
    assert "slow now: rank 3 on h2" in shown[1]


def test_each_rank_has_its_line_where_there_is_room():
    shown = plain(lines(job(64, 8), 160, 120))
    assert sum("loss" in line for line in shown) == 64
    assert any(re.match(r"7 h1 +12\.5 +400 .*60 % +5 % +20 % +3 +5 % +98 % +1\.0 GB +loss 7", line) for line in shown)


def test_where_there_is_none_each_host_has_one_with_a_character_per_rank():
    shown = plain(lines(job(64, 8), 160, 24))
    assert any(re.match(r"h8 .*56 █{8}", line) for line in shown)


def test_in_80_columns_nothing_is_cut_and_the_last_line_has_room():
    shown = plain(lines(job(8), 80, 24))
    assert "…" not in "".join(shown)
    assert re.match(r"rank +steps/s +time +compute +input +waits for +moving +last line", shown[2])
    assert re.match(r"7 +12\.5 +█{5}wwo +60 % +5 % +20 % +3 +5 % +loss 7", shown[10])


@pytest.mark.parametrize(("columns", "rows", "is_all"), [(80, 24, False), (80, 24, True), (60, 24, False)])
def test_the_reason_why_a_rank_is_slow_is_wrapped_and_leaves_each_rank_its_line(columns, rows, is_all):
    reason = "rank 1 on localhost costs every step 19 ms (16 %): its forward and backward passes take longer"
    shown = plain(lines(job(8, slow=(Slow(1, reason, stands=True),)), columns, rows, is_all=is_all))
    assert len(shown) < rows
    assert f"slow: {reason}" in " ".join(line.strip() for line in shown[1:3])
    assert [line.split()[0] for line in shown if "loss" in line] == [str(rank) for rank in range(8)]


def test_the_title_has_script_hosts_and_job_and_one_more_bar_is_one():
    snapshot = replace(job(4, 2), job="d4d187d2cafe", command="/usr/bin/python -u /home/a/train.py --lr 1", bars=1)
    wide, narrow, narrower = (plain(lines(snapshot, columns, 24)) for columns in (120, 80, 70))
    said = "12.5 steps/s · 1,600 samples/s · 1:28 left · 1:01"
    assert wide[0].startswith(f"train.py 4 ranks · 2 hosts · {said} · job d4d187d2 ")
    assert narrow[0].startswith(f"train.py 4 ranks · 2 hosts · {said} ")
    assert narrower[0].startswith(f"train.py 4 ranks · {said} ")
    assert plain(lines(replace(snapshot, ranks=()), 120, 24))[0].startswith("train.py 4 ranks · 1:28 left")
    assert wide[-1].rstrip().endswith("1 more progress bar")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/opt/venv/bin/python /home/a/train.py --lr 1", "train.py --lr 1"),
        ("python -m train.main --lr 1 --config a.py", "train.main --lr 1 --config a.py"),
        ("python -u -m train", "train"),
        ("./prog -m x", "prog -m x"),
        ("python", "python"),
        ("", ""),
    ],
)
def test_a_command_is_named_by_its_script(command, words):
    assert " ".join(from_script(command.split())) == words


def test_ranks_of_which_nothing_is_heard_are_named_and_those_that_are_gone_say_so():
    ranks = (
        RankView(0, "h1", is_heard=False),
        RankView(1, "h1", is_heard=False, line="loading"),
        RankView(2, "h1", is_gone=True, doing="computing for 9 s", line="bye"),
    )
    job = Snapshot("j", "c", 3, 2.0, ranks=ranks)
    shown = plain(lines(job, 120, 24))
    note = "nothing heard yet of ranks 0-1: ranks tell of themselves from distrun.init() on"
    assert shown[1].rstrip() == note
    assert shown[4].rstrip().endswith("loading")
    assert re.search(r" gone +bye *$", shown[5])
    assert shown[0].startswith("c 3 ranks (1 gone) · 1 host · 0:02 · job j")
    assert sentence(job).endswith(f"; {note}")


def test_what_a_rank_has_been_doing_for_long_begins_with_how_long():
    rank = RankView(0, "h1", doing="waiting for its next batch", doing_for=41.2, line="bye")
    job = Snapshot("j", "c", 1, 2.0, ranks=(rank,))
    assert "41 s waiting" in "\n".join(plain(lines(job, 80, 24)))
    assert sentence(job) == "1 rank; rank 0 has been waiting for its next batch for 41 s"


def test_a_lost_host_has_no_figures_and_its_ranks_do_not_count_for_the_speed():
    ranks = (RankView(0, "h1", steps_per_second=5.0), RankView(1, "h2", steps_per_second=0.0, is_gone=True))
    hosts = (HostView("h1", 50, 40, 1e6, 2e6), HostView("h2", 50, 40, 1e6, 2e6, is_silent=True))
    job = Snapshot("j", "c", 2, 2.0, ranks=ranks, hosts=hosts)
    assert job.steps_per_second == 5.0
    assert "network in 1.0 MB/s out 2.0 MB/s   h2: nothing heard any more" in "\n".join(plain(lines(job, 120, 24)))


def test_a_rank_that_writes_before_its_host_tells_what_it_uses_has_both():
    hub = Hub(LaunchPlan("j", 2, (AgentPlan("h1", ["sleep", "9"], "/", 1.0, {}, []),)))
    hub.output(1, b"begun\n")
    used = {"cpu": 50.0, "memory": 10**6}
    hub.sample("h1", {"time": 1, "cpu": 5, "memory": 6, "network": {}, "ranks": {"0": used, "1": used}})
    hub.tick(2)
    assert [(rank.host, rank.cpu, rank.line, rank.is_heard) for rank in hub.latest.ranks] == [
        ("h1", 50.0, "", False),
        ("h1", 50.0, "begun", False),
    ]


@pytest.mark.parametrize(("kind", "name"), [(STEP, 0), (WAITED, 0), (DONE, 1)])
def test_what_a_rank_is_doing_is_measured_from_its_last_step_sleep_or_operation(kind, name):
    model = Model()
    for second in range(30):  # a loop without a framework: its state is that of the beginning
        at = START + second * 1000 * MS
        begun = [event(OTHER, at)] if second == 0 else []
        model.events(Source(0, 0, "h1"), [*begun, event(kind, at, at, name=name, number=second + 1)], ["", "gradients"])
        model.tick(at + 900 * MS)
        assert snapshot(model, "j", "c", 1, 1.0).ranks[0].doing == ""
    model.tick(at + 3_000 * MS)
    (rank,) = snapshot(model, "j", "c", 1, 1.0).ranks
    assert (rank.doing, rank.doing_for) == ("busy with the script's own code", 3.0)


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_what_a_rank_is_doing_hides_no_output(columns):
    doing = RankView(0, "h1", doing="busy with the script's own code", doing_for=17.0, line="step 300")
    gone = RankView(1, "h1", is_gone=True, line="trained")
    shown = plain(lines(Snapshot("j", "c", 2, 2.0, ranks=(doing, gone)), columns, 24))
    assert re.search(r" 17 s busy.* step 300 *$", shown[2])
    assert re.search(r" gone +trained *$", shown[3])


def test_of_several_jobs_top_names_the_scripts(monkeypatch):
    python = "/home/somebody/environments/of/a/long/name/bin/python"
    there = [
        commands.Job(name, 1, 2, ["h1"], f"{python} /home/somebody/{script}", 0.0, None)
        for name, script in (("d4d187d2cafe", "train.py --lr 1"), ("0b6c62f2cafe", "evaluate.py"))
    ]
    monkeypatch.setattr(commands, "jobs", lambda: there)
    with pytest.raises(UsageError, match=r": d4d187d2 \(train\.py --lr 1\), 0b6c62f2 \(evaluate\.py\)$"):
        commands.the_job(None)


def test_it_can_be_sent():
    assert Snapshot.from_json(job(3).to_json()) == job(3)


def test_without_a_terminal_there_is_a_line_now_and_then_and_at_once_when_a_rank_is_slow():
    said: list[str] = []
    now = [0.0]
    viewer = PlainView(said.append, lambda: now[0])
    viewer.see(job(4, slow=()))
    assert said == []
    now[0] = LINE_EVERY
    viewer.see(job(4, slow=()))
    assert len(said) == 1
    viewer.see(job(4))
    viewer.see(job(4))
    assert len(said) == 2
    assert said[1].startswith("4 ranks, 12.5 steps/s, 1,600 samples/s, 1:28 left; compute 60 %")
    assert said[1].endswith(SLOW.sentence)


def test_words():
    assert [number(value) for value in (0.418, 31.24, 998.4, 12480.0)] == ["0.42", "31.2", "998", "12,480"]
    assert [size(value) for value in (12, 1500, 812e6, 3.1e9)] == ["12 B", "1.5 kB", "812 MB", "3.1 GB"]
    assert [clock(value) for value in (88, 7384)] == ["1:28", "2:03:04"]
    assert sentence(Snapshot("j", "c", 1, 0.0)) == "1 rank"
