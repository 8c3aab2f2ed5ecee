"""The judge of the chaos test: it passes what is well, and finds each kind of fault."""

import copy

import pytest

from benchmarks.chaos.checks import differences, examine, facts_in, pauses

SAMPLES, EPOCHS = 12, 2


def job(*generations):
    """The facts of a job: for each generation its size, the steps that it does, and which ranks began one more."""
    facts, step, left = [], 0, [(epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES)]
    for number, (size, steps, ahead) in enumerate(generations, 1):
        common = [{"generation": number, "rank": rank, "size": size} for rank in range(size)]
        facts += [{"what": "start", **rank, "step": step, "weights": f"w{step}"} for rank in common]
        for more in range(steps + 1):
            for place in common:
                if more < steps or place["rank"] in ahead:
                    epoch, sample = left[place["rank"]]
                    loss = 1.0 / (1 + step)
                    facts.append(
                        {"what": "step", **place, "step": step, "epoch": epoch, "samples": [sample], "loss": loss}
                    )
            if more < steps:
                del left[:size]
                step += 1
    facts += [{"what": "end", **rank, "step": step, "weights": "end"} for rank in common]
    assert not left
    return facts


GOOD = job((2, 3, {0}), (3, 2, {0, 2}), (2, 0, set()), (1, 2, {0}), (2, 5, set()))


def test_a_job_that_lost_nothing_passes():
    report = examine(GOOD, SAMPLES, EPOCHS)
    assert report.faults == []
    assert (report.generations, report.steps, report.sizes) == (5, 12, {1, 2, 3})
    assert len(report.losses) == 12


def test_a_generation_that_nobody_reached_is_none():
    facts = [{**fact, "generation": fact["generation"] + (fact["generation"] > 2)} for fact in GOOD]
    assert examine(facts, SAMPLES, EPOCHS).faults == []


def changed(change):
    facts = copy.deepcopy(GOOD)
    change(facts)
    return examine(facts, SAMPLES, EPOCHS).faults


def find(facts, **what):
    return next(fact for fact in facts if all(fact.get(name) == value for name, value in what.items()))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda facts: find(facts, what="step", step=1)["samples"].append(0), "epoch 0: 1 samples doubled: [0]"),
        (lambda facts: find(facts, what="step", step=1)["samples"].clear(), "epoch 0: 1 samples lost: [2]"),
        (lambda facts: facts.remove(find(facts, what="step", step=1, rank=1)), "step 1 of generation 1: ranks [0]"),
        (lambda facts: find(facts, what="start", generation=2, rank=1).update(weights="x"), "different weights"),
        (lambda facts: find(facts, what="start", generation=2, rank=1).update(step=9), "different step"),
        (lambda facts: [f.update(step=2) for f in facts if f["generation"] == 3 and f["what"] == "start"], "are lost"),
        (lambda facts: facts.remove(find(facts, what="end", rank=1)), "only ranks [0] ended"),
        (lambda facts: find(facts, what="end", rank=1).update(weights="x"), "end with different weights"),
        (lambda facts: find(facts, what="step", step=11, generation=5).update(epoch=7), "steps of epochs [7]"),
        (lambda facts: facts.clear(), "no rank came to train"),
    ],
)
def test_each_fault_is_found(change, fault):
    assert any(fault in sentence for sentence in changed(change)), changed(change)


def test_losses_are_compared_where_the_size_is_kept():
    calm, disturbed = (examine(job(*parts), SAMPLES, EPOCHS) for parts in ([(2, 12, {})], [(2, 5, {0}), (2, 7, {})]))
    assert differences(disturbed, calm) == []
    calm.losses[4] += 1e-6
    assert differences(disturbed, calm) == ["step 4: the loss is 0.4, undisturbed 0.400001"]
    del calm.losses[0]
    assert differences(disturbed, calm) == ["12 steps, undisturbed 11"]
    assert "cannot be compared" in differences(examine(GOOD, SAMPLES, EPOCHS), calm)[0]


def test_facts_are_read_from_the_files_of_all_processes(tmp_path):
    (tmp_path / "a.1.jsonl").write_text('{"rank": 0}\n{"rank": 1}\n')
    (tmp_path / "a.2.jsonl").write_text('{"rank": 2}\n')
    assert facts_in(tmp_path) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_a_pause_ends_when_all_ranks_of_a_later_generation_are_in_a_step():
    steps = [(1, 0, 1.0), (1, 1, 1.1), (2, 0, 5.0), (3, 0, 6.0), (3, 1, 6.5), (3, 1, 7.0)]  # the second is not whole
    facts = [
        {"what": "step", "generation": number, "rank": rank, "size": 2, "at": at} for number, rank, at in steps
    ] + [{"what": "end"}]
    assert pauses(facts, [(2.0, 1), (8.0, 3)]) == [4.5]
