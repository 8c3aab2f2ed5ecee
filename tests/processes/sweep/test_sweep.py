"""`distrun sweep` as its users see it: real trials of real ranks."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = pytest.mark.gate

QUADRATIC = """
import argparse, distrun
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
args = parser.parse_args()
for epoch in range(1, 10):
    noise = 1 / epoch
    distrun.report((args.x - 0.3) ** 2 + noise, epoch)
    print("epoch", epoch, flush=True)
"""


def test_a_search_finds_a_known_best_and_prunes(sweep):
    search = sweep(
        *("-H", "localhost:1", "--trials", "10", "--prune", "--seed", "2"),
        script=QUADRATIC,
        command=["x=0.05..0.95/0.1"],
    )
    assert search.wait(90) == 0
    assert "pruned" in search.results.states
    best = search.results.best
    assert abs(best["params"]["x"] - 0.3) < 0.1
    assert best["command"][2:] == [f"--x={best['params']['x']!r}"]
    study = search.results.study
    assert len(study.trials) == 10
    assert study.best_value == best["value"]


PRUNED = """
import os, sys, distrun
distrun.init()
number = int(os.environ["DISTRUN_TRIAL"])
try:
    for step in range(1, 5):
        value = distrun.allreduce(float(number), name="value")
        distrun.report(value + distrun.rank(), step)
except distrun.TrialPruned:
    print(f"rank {distrun.rank()} ends after {step} of {distrun.allgather_object(step)}", flush=True)
    raise
"""


def test_all_ranks_of_a_pruned_trial_end_in_the_same_call(sweep):
    several = sweep("--seeds", "3", "-np", "2", "-H", "localhost:2", "--prune", "--prune-after", "2", script=PRUNED)
    assert several.wait(60) == 0
    assert several.results.states == ["complete", "pruned", "pruned"]
    for trial in (1, 2):
        said = several.results.log(trial).splitlines()
        assert sorted(said) == [f"[{rank}] rank {rank} ends after 2 of [2, 2]" for rank in range(2)]
        assert len(several.results.trials[trial]["reports"]) == 2


RANK_0_ONLY = """
import os, distrun
distrun.init()
for step in range(1, 4):
    distrun.barrier()
    if distrun.rank() == 0:
        distrun.report(float(os.environ["DISTRUN_TRIAL"]))
"""


@pytest.mark.full
def test_a_script_that_reports_on_rank_0_only_is_pruned_too(sweep):
    run = sweep(
        *("--seeds", "2", "-np", "2", "-H", "localhost:2", "--prune", "--prune-after", "1", "--grace", "1"),
        script=RANK_0_ONLY,
    )
    assert run.wait() == 0
    assert run.results.states == ["complete", "pruned"]


def test_values_that_are_printed_are_read_and_the_script_needs_no_distrun(sweep):
    code = "import sys; print('val_loss: 9'); print('loss: 7', end=''); sys.stdout.write(f' - loss={sys.argv[1]}')"
    run = sweep(
        *("--grid", "--maximize", "--metric", "loss", "-H", "localhost:2"),
        command=[sys.executable, "-c", code, "{x}", "x=1e-1|nan|2.5", "--", "--fixed"],
    )
    assert run.wait() == 0
    header = json.loads((run.results.folder / "sweep.json").read_text())
    assert (header["words"][3:], header["fixed"], header["parameters"]) == (["{x}"], ["--fixed"], {"x": "1e-1|nan|2.5"})
    assert [run.results.trials[number]["value"] for number in range(3)] == [0.1, "nan", 2.5]
    assert run.results.best["params"] == {"x": 2.5}
    assert run.results.log(0) == "val_loss: 9\nloss: 7 - loss=1e-1\n"
    assert b"3 trials; 2 trials of 1 rank at once" in run.stderr.data


FAILING = """
import sys
if sys.argv[1] == "--x=b":
    sys.exit("b is <wrong>")
print("loss 1")
"""


def test_a_trial_that_fails_has_its_failure_report_in_all_places_and_ends_nothing(sweep):
    run = sweep("--grid", "--metric", "loss", "-H", "localhost:1", script=FAILING, command=["x=a|b|c"])
    assert run.wait() == 0
    assert run.results.states == ["complete", "complete", "failed"]
    report = run.results.trials[1]["story"]
    assert "rank 0 of trial 1 on localhost" in report
    assert "exited with code 1" in report
    assert "b is <wrong>" in report
    run.stderr.wait_for(b"b is <wrong>")
    assert "b is <wrong>" in run.results.study.trials[1].user_attrs["story"]


def test_trials_begin_in_spares_which_run_the_script_as_if_started_just_now(sweep):
    script = """
import json
import sys, os
import distrun
path = open("/proc/self/cmdline").read()
print(sys.argv[1:], __name__, "spare.py" in path, os.environ.get("DISTRUN_SPARE"), os.environ["DISTRUN_RANK"])
distrun.report(1.0)
"""
    run = sweep("--seeds", "6", "-H", "localhost:1", script=script)
    assert run.wait() == 0
    said = [run.results.log(number).strip() for number in range(6)]
    assert said[0] == "['--seed=0'] __main__ False None 0"
    assert said[5] == "['--seed=5'] __main__ True None 0"


def test_a_sweep_is_resumed_without_repeating_what_is_done(sweep, tmp_path):
    flag = tmp_path / "flag"
    script = f"import os, sys\nif not os.path.exists({str(flag)!r}) and sys.argv[1] == '--x=2': sys.exit(3)\nprint(1)\n"
    run = sweep("--grid", script=script, command=["x=1..3"])
    assert run.wait() == 0
    assert run.results.states == ["complete", "complete", "failed"]
    flag.touch()
    before = len((run.results.folder / "trials.jsonl").read_text().splitlines())
    again = sweep("--resume", str(run.results.folder))
    assert again.wait() == 0
    assert again.results.states == ["complete"] * 3
    assert len((run.results.folder / "trials.jsonl").read_text().splitlines()) == before + 2
    other = sweep("--resume", str(run.results.folder / "study.db"), command=["true", "y=1|2"])
    anew = sweep("--grid", command=["true", "x=1|2"])  # which would overwrite it
    assert (other.wait(), anew.wait()) == (2, 2)
    assert b"a sweep of another command" in other.stderr.data
    assert b"go on with that one by --resume" in anew.stderr.data
