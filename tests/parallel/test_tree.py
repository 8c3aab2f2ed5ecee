"""Many hosts: ranks whose messages to rank 0 pass the leaders of other hosts, by programs that all jobs run."""

from __future__ import annotations

import pytest

PROGRAMS = ("order", "process_sets", "member_sets", "join", "errors", "messages", "allreduce", "objects")


@pytest.mark.parametrize("job", ["tree-1+2+1"], indirect=True)
@pytest.mark.parametrize("program", PROGRAMS)
def test_nobody_notices_that_others_pass_on_what_they_say(job, program, tmp_path):
    job.run(program, *([str(tmp_path)] if program == "member_sets" else []))


@pytest.mark.parametrize("job", ["tree-1+2+1"], indirect=True)
def test_bursts_and_long_names_find_their_way(job):
    job.run_alone("bursts")
