"""`--torch-backend`: which of the backends that a script may ask for are replaced by ours."""

import pytest

from distrun.torch_distributed.substitution import chosen_backend

GLOO = ["gloo", "GLOO", "cpu:gloo", "cuda:gloo", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cpu:gloo,cuda:gloo"]
"""gloo, and what torch uses by itself."""
OTHERS = ["nccl", "cuda:nccl", "mpi", "distrun", "fake", "cpu:gloo,xpu:xccl", "cpu:gloo,mps:gloo"]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        *((each, "distrun") for each in GLOO),
        *((each, each) for each in OTHERS),
        (None, None),
        ("", None),
        ("undefined", None),
    ],
)
def test_gloo_becomes_distrun_others_stay_and_without_a_name_the_default_is_left_to_decide(asked, chosen):
    assert chosen_backend(asked) == chosen
