"""`--torch-backend`: which of the backends that a script may ask for are replaced by ours."""

import pytest

from distrun.torch_distributed.substitution import chosen_backend


@pytest.mark.parametrize(
    "asked", ["gloo", "GLOO", "cpu:gloo", "cuda:gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cpu:gloo,cuda:gloo"]
)
def test_gloo_becomes_distrun_and_so_does_what_torch_uses_by_itself(asked):
    assert chosen_backend(asked) == "distrun"


@pytest.mark.parametrize("asked", [None, "", "undefined"])
def test_where_nothing_is_asked_for_the_default_is_left_to_decide(asked):
    assert chosen_backend(asked) is None


@pytest.mark.parametrize(
    "asked", ["nccl", "cuda:nccl", "mpi", "distrun", "fake", "cpu:gloo,xpu:xccl", "cpu:gloo,mps:gloo"]
)
def test_other_backends_stay_what_they_are(asked):
    assert chosen_backend(asked) == asked
