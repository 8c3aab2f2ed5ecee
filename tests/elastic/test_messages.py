"""Messages between ranks end with their generation, and go on in the next."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize("hosts", one_in_gate(2, 1))
def test_ranks_that_wait_for_messages_join_the_next_generation_and_hold_no_more_there(supervise, hosts):
    supervisor = supervise("messages", 4, hosts=hosts)
    for rank in supervisor.members:
        rank.await_step(1)
    supervisor.kill(2)
    supervisor.assign(supervisor.members, "rank 2 was killed by SIGKILL")
    for place, rank in enumerate(supervisor.members):
        rank.await_step(2)
        facts = next(fact for fact in rank.told() if fact.get("begun") == 2)
        assert (facts["rank"], facts["size"]) == (place, 3)
        assert any("rank 2 " in str(fact["over"]) for fact in rank.told() if "over" in fact)
    for generation in range(3, 8):
        supervisor.assign(supervisor.members)
        for rank in supervisor.members:
            rank.await_step(generation)
    for rank in supervisor.members:
        held = {fact["begun"]: fact["held"] for fact in rank.told() if "begun" in fact}
        assert all(held[generation] == held[2] for generation in range(3, 8)), held
