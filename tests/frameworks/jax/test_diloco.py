"""DiLoCo and local SGD with optax; see programs/diloco.py for the behaviours."""

from __future__ import annotations

import pytest

pytest.importorskip("optax")

pytestmark = pytest.mark.feature_group("JAX")


@pytest.mark.feature("DiLoCo and local SGD between hosts", backend="jax")
@pytest.mark.parametrize("size", [2, (1, 1)], ids=str)
def test_hosts_train_by_themselves_and_come_together_now_and_then(warm_job, size):
    assert warm_job("diloco", size).count("done") == 2
