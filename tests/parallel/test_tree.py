"""Many hosts: ranks whose messages to rank 0 pass the leaders of other hosts, by programs that all jobs run."""

from __future__ import annotations

import pytest

IN_GATE = ("process_sets", "member_sets", "errors", "messages")
OTHERS = ("order", "join", "allreduce", "objects")


@pytest.mark.parametrize("job", ["tree-1+2+1"], indirect=True)
@pytest.mark.parametrize("program", [*(pytest.param(name, marks=pytest.mark.gate) for name in IN_GATE), *OTHERS])
def test_nobody_notices_that_others_pass_on_what_they_say(job, program, tmp_path):
    job.run(program, *([str(tmp_path)] if program == "member_sets" else []))
