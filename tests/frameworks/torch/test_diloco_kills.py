"""A rank dies while hosts that train by themselves exchange what they have learned: all others are told which."""

from __future__ import annotations

import re
import signal

import pytest
from without_launcher.unlaunched_ranks import named, ready


@pytest.mark.parametrize(("hosts", "victim", "host"), [((1, 1), 0, 0), ((2, 1), 1, 0)])
def test_a_killed_rank_is_named_in_the_middle_of_an_exchange(ranks, hosts, victim, host):
    everybody = ready(ranks("diloco_killed", str(victim), hosts=hosts))
    everybody[victim].await_stop()
    everybody[victim].signal(signal.SIGKILL)
    for place, rank in enumerate(everybody):
        if place != victim:
            assert rank.end() == 0, rank.stderr.text
            gone = rf"{named(victim, everybody[victim].pid, host)} (was killed by SIGKILL|is gone)"
            said = rank.stdout.text
            assert re.search(rf"^JobAbortedError: .*{gone}", said, re.MULTILINE), said
            assert re.search(rf"^merge: JobAbortedError: .*{gone}", said, re.MULTILINE), said
