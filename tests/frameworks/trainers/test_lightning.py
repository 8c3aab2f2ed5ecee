"""DistrunStrategy: what ranks train together by Lightning is what plain torch trains in one process."""

from __future__ import annotations

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize(
    ("package", "size"),
    one_in_gate(
        *(pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in (
            ("lightning", 2),
            ("pytorch_lightning", 2),
            ("lightning", 1),
            ("lightning", 3),
            ("lightning", (1, 1)),
        ))
    ),
)  # fmt: skip
def test_ranks_train_as_one_process_does(job, tmp_path, package, size):
    pytest.importorskip(package)
    job("strategy", size, package, str(tmp_path))
