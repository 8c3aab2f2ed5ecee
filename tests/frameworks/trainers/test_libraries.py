"""Lightning, accelerate and transformers train on distrun as they do on gloo: the same losses, to the last bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import in_turn

pytest.importorskip("torch")

PROGRAM = str(Path(__file__).parent / "programs" / "libraries.py")
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


@pytest.fixture
def train(tmp_path):
    """Returns a function that trains by a library on two ranks, and returns what each prints and what else is said."""

    def train(library: str, *options: str, backend: str | None = None) -> tuple[list[dict], str]:
        pytest.importorskip(library)
        arguments = [library, ".", *([] if backend is None else [backend])]
        done = subprocess.run(
            [sys.executable, "-m", "distrun.runner", "-np", "2", *options, sys.executable, PROGRAM, *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        both = f"{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        assert done.returncode == 0, both
        found = sorted(map(json.loads, re.findall(r"RESULT (\{.*\})", done.stdout)), key=lambda rank: rank["rank"])
        assert [rank["rank"] for rank in found] == [0, 1], both
        return found, both

    return train


def assert_same(on_distrun: list[dict], on_gloo: list[dict]) -> None:
    assert [rank.pop("backend") for rank in (*on_gloo, *on_distrun)] == ["gloo", "gloo", "distrun", "distrun"]
    assert on_distrun == on_gloo
    assert on_gloo[0]["sum"] == on_gloo[1]["sum"]
    assert len(on_gloo[0]["losses"]) > 4


def test_lightning_with_a_strategy_that_names_the_backend(train):
    assert_same(train("lightning", backend="distrun")[0], train("lightning", backend="gloo")[0])


@pytest.mark.gate
@pytest.mark.parametrize(
    "library", [*in_turn("accelerate", "lightning"), pytest.param("transformers", marks=pytest.mark.full)]
)
def test_libraries_that_leave_the_choice_of_a_backend_to_torch_or_choose_gloo_for_cpus(train, library):
    found, said = train(library, "--torch-backend")
    assert_same(found, train(library)[0])
    asked = "" if library == "lightning" else "; the script asks for gloo"
    assert f"[0] distrun: torch.distributed is on distrun{asked}" in said
