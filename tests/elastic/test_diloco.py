"""DiLoCo under a launcher that drops and adds hosts: those that are there come together, and nobody else's loss
counts."""

from __future__ import annotations

import random
import time

import pytest

pytest.importorskip("torch")

STEPS, HOLD = 150, 75  # and more steps, until the test lets the job end


def check(supervisor, kept):
    """Each generation begins with the same bits everywhere; and with the average of what the survivors had learned."""
    facts = supervisor.finish()
    assert len({fact["done"] for fact in facts if "done" in fact}) == 1
    compared = 0
    for generation in range(1, supervisor.generation + 1):
        entered = [fact for fact in facts if fact["generation"] == generation and "entered" in fact]
        left = [fact for fact in facts if fact["generation"] == generation and "left" in fact]
        assert len({fact["weights"] for fact in entered}) == 1
        assert len({fact["at"] for fact in entered}) == 1
        if len({tuple(fact["versions"]) for fact in left}) == 1 and any(fact["left"] for fact in left):
            mean = sum(fact["left"] for fact in left) / len(left)
            assert entered[0]["entered"] == pytest.approx(mean, rel=1e-3)
            compared += 1
    assert compared >= kept


@pytest.mark.parametrize(("way", "hosts", "kills"), [("overlap", 2, 3), ("wait", 3, 3)])
def test_hosts_that_are_killed_at_random_moments_lose_their_own_progress_only(supervise, tmp_path, way, hosts, kills):
    (tmp_path / "go").touch()
    supervisor = supervise("diloco", 3, way, str(STEPS), str(HOLD), hosts=hosts)
    choose = random.Random(f"{way} {hosts}")
    for rank in (0, 2, choose.randrange(3))[:kills]:
        supervisor.members[1].await_step(supervisor.generation, choose.randrange(3, 25))
        time.sleep(choose.uniform(0, 0.005))  # anywhere in a step
        supervisor.replace(rank)
    supervisor.let_end()
    check(supervisor, kept=kills // 3)  # survivors that stood at different steps are not compared


def test_a_job_goes_on_with_one_host_and_others_come_late(supervise, tmp_path):
    supervisor = supervise("diloco", 2, "overlap", str(STEPS), str(HOLD), hosts=2)
    supervisor.members[0].await_step(1, 20)
    supervisor.replace(1, newcomers=0)
    supervisor.grow(2)
    (tmp_path / "go").touch()
    supervisor.let_end()
    check(supervisor, kept=2)
    sizes = [fact["size"] for fact in supervisor.members[0].told() if "step" in fact]
    assert sorted(set(sizes)) == [1, 2, 3]
