"""Losses of compressed gradients when ranks are killed: survivors still make up for them, newcomers have none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PLAYING = Path(__file__).parents[1] / "frameworks" / "torch" / "programs" / "gpu"


@pytest.mark.parametrize(("form", "options"), [("int4", ()), ("int4", ("gpu",)), ("powersgd", ("commits",))])
def test_survivors_owe_what_they_owed_at_the_step_from_which_they_go_on(supervise, gpu_environ, form, options):
    environ = {}
    if "gpu" in options:
        environ = gpu_environ(3)
        environ["PYTHONPATH"] += f"{os.pathsep}{PLAYING}"
    _check(supervise("residuals", 3, form, *options, hosts=2, **environ), form)


@pytest.mark.parametrize(
    ("face", "form", "commits"),
    [
        ("jax", "int4", ()),
        ("jax", "powersgd", ("commits",)),
        ("tensorflow", "int4", ("commits",)),
        ("keras", "powersgd", ()),
    ],
)
def test_so_they_do_where_graphs_reduce_gradients(supervise, tmp_path, face, form, commits):
    pytest.importorskip("optax" if face == "jax" else face)
    variables = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "tensorflow", "TMPDIR": str(tmp_path)}
    _check(supervise("graph_residuals", 3, face, form, *commits, hosts=2, **variables), form)


def _check(supervisor, form):
    for process in supervisor.members:
        process.await_step(1, 10)
    supervisor.replace(1)
    for process in supervisor.members:
        process.await_step(2, 6)
    owing = []
    for process in supervisor.members:
        facts = process.told()
        at_steps = {fact["step"]: fact["owed"] for fact in facts if "step" in fact and fact["generation"] == 1}
        (begun,) = [fact for fact in facts if "begun" in fact and fact["generation"] == 2]
        before = at_steps[begun["begun"]] if at_steps else []
        assert [size for size in begun["owed"] if size] == [size for size in before if size]
        owing.append(sum(before) > 0)
        assert sum(facts[-1]["owed"]) > 0 or not owing[-1]
    assert owing[0], "rank 0 quantises"
    assert not owing[1], "rank 1 is new"
    assert owing[2] == (form == "powersgd"), "of the first host, rank 0 alone quantises"
