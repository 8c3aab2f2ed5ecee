"""TorchState under a launcher that replaces, drops and adds ranks, at random moments."""

from __future__ import annotations

import random
import time

import pytest

pytest.importorskip("torch")

STEPS = 250  # and more, until the test lets the job end
BATCH = 12


def steps_of(supervisor):
    """Return what was told of each step that counts, by its number, as a list with one entry per rank.

    A step counts where the next generation goes on from it: a rank that died may have told of none of it.
    """
    told = {}
    for process in supervisor.processes:
        for fact in process.told():
            if "step" in fact:
                told.setdefault(fact["step"], {}).setdefault(fact["generation"], []).append(fact)
    return told


def check(supervisor, is_told_late=False):
    """All weights are the same bits, and each sample was used once; return the loss of each step.

    A step whose telling comes after a collective may be done and not be told of.
    """
    supervisor.finish()
    weights = {fact["weights"] for process in supervisor.members for fact in process.told() if "weights" in fact}
    assert len(weights) == 1
    losses = []
    told = steps_of(supervisor)
    steps = max(told)
    assert steps >= STEPS
    assert sorted(told) == list(range(1, steps + 1))
    for step in range(1, steps + 1):
        assert len(told[step]) == 1, f"step {step} was made in the generations {sorted(told[step])}"
        (facts,) = told[step].values()
        used = [number for fact in facts for number in fact["samples"]]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range((step - 1) * BATCH, step * BATCH))
        if is_told_late:
            continue
        if len(facts) == facts[0]["size"]:
            assert len(used) == BATCH
            losses.append(sum(fact["loss"] for fact in facts))
        else:  # a rank died, or was aborted, before it could tell
            losses.append(None)
    return losses


def disturb(supervisor, kills, seed, newcomers=1, is_all=True):
    """Kill ranks at random moments of training, rank 0 among them; then let it end, if that `is_all`."""
    choose = random.Random(seed)
    ranks = [0, *(choose.randrange(len(supervisor.members)) for _ in range(kills - 1))]
    for rank in ranks:
        supervisor.members[0].await_step(supervisor.generation, choose.randrange(1, 30))
        time.sleep(choose.uniform(0, 0.005))  # anywhere in a step
        supervisor.replace(rank % len(supervisor.members), newcomers)
    if is_all:
        supervisor.let_end()


@pytest.fixture(scope="module")
def undisturbed():
    """The losses of jobs of a size that nobody disturbs, by the way of training."""
    return {}


@pytest.mark.parametrize("way", ["plain", "gan"])
def test_losses_are_those_of_an_undisturbed_run_where_the_size_is_kept(supervise, way):
    supervisor = supervise("training", 2, way, str(STEPS))
    disturb(supervisor, 4, way)
    losses = check(supervisor)
    quiet = check(supervise("training", 2, way, str(len(losses))))
    compared = [(loss, other) for loss, other in zip(losses, quiet, strict=True) if loss is not None]
    assert len(compared) > len(losses) - 30
    for loss, other in compared:
        assert loss == pytest.approx(other, rel=1e-4)


def test_gradients_that_were_being_accumulated_are_dropped(supervise):
    supervisor = supervise("training", 3, "accumulating", str(STEPS))
    disturb(supervisor, 3, "accumulating")
    check(supervisor, is_told_late=True)


@pytest.mark.gate
def test_a_job_shrinks_to_one_rank_and_grows_to_three(supervise, tmp_path):
    supervisor = supervise("training", 2, "plain", str(STEPS), str(STEPS // 2))
    disturb(supervisor, 1, "shrink", newcomers=0, is_all=False)
    supervisor.grow(2)
    (tmp_path / "go").touch()
    supervisor.let_end()
    check(supervisor)
    sizes = [fact["size"] for fact in supervisor.members[0].told() if "step" in fact]
    assert sorted(set(sizes)) == [1, 2, 3]
    assert sizes[-1] == 3
