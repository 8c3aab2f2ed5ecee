"""Environments for ranks, made on hosts by --bootstrap from the index that the host itself has."""

from __future__ import annotations

import os
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

PYTHON = "/usr/bin/python3"
TRAIN = (
    "import sys, os, numpy as np, distrun, toy_model\n"
    "distrun.init()\n"
    "total = distrun.allreduce(np.ones(3), op=distrun.Sum)\n"
    "print(toy_model.NAME, distrun.size(), total.tolist(), sys.prefix, os.environ['VIRTUAL_ENV'])\n"
)
BACKEND = """
import time

def build_wheel(*arguments, **options):
    open({fifo!r}, "w").write("building")
    time.sleep(1000)
"""


def repack(name: str, folder: Path) -> None:
    """Write a wheel with the files of an installed distribution."""
    found = metadata.distribution(name)
    tags = [line.partition(": ")[2] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag")]
    with zipfile.ZipFile(folder / f"{found.name}-{found.version}-{tags[0]}.whl", "w") as wheel:
        for file in found.files or ():
            if ".." not in file.parts and not file.name.endswith((".pyc", "RECORD", "INSTALLER")):
                wheel.write(file.locate(), str(file))
        wheel.writestr(f"{found.name}-{found.version}.dist-info/RECORD", "")


def write_package(name: str, folder: Path) -> None:
    """Write a wheel of one module, which says its name."""
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"NAME = {name!r}\n")
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A folder of wheels, which is all the index that hosts have."""
    folder = tmp_path_factory.mktemp("index")
    for name in ("numpy", "psutil", "cloudpickle"):
        repack(name, folder)
    write_package("toy_model", folder)
    return folder


@pytest.fixture
def hosts(gamma, delta, index):
    """Both bare hosts, whose pip takes packages from the folder."""
    for host in (gamma, delta):
        (host.home / ".config" / "pip").mkdir(parents=True)
        (host.home / ".config" / "pip" / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {index}\n")
    return gamma, delta


def launch(distrun, hosts, *arguments):
    return distrun("-H", hosts, "--python", PYTHON, "--wdir", "/", "--no-tag-output", *arguments)


def environments(host):
    return [path for path in (host.cache / "environments").iterdir() if path.is_dir()]


def test_ranks_train_in_an_environment_that_is_made_once(distrun, hosts):
    gamma, _ = hosts
    first = launch(distrun, "gamma:2,delta:1", "--bootstrap=toy_model", "python", "-c", TRAIN)
    second = launch(distrun, "gamma:1", "--bootstrap=toy_model", "python", "-c", TRAIN)
    for job, size in ((first, 3), (second, 1)):
        assert job.wait(120) == 0, job.stderr.data
        lines = job.stdout.data.decode().splitlines()
        assert len(lines) == size
        for line in lines:
            assert line.startswith(
                f"toy_model {size} [{size}.0, {size}.0, {size}.0] /root/.cache/distrun/environments/"
            )
            *_, prefix, virtual = line.split()
            assert prefix == virtual
    (made,) = environments(gamma)
    before = (made / ".complete").stat().st_mtime_ns
    launch(distrun, "gamma:1", "--bootstrap=toy_model", "python", "-c", "import toy_model").ended(0)
    assert environments(gamma) == [made]
    assert (made / ".complete").stat().st_mtime_ns == before
    killed = launch(distrun, "gamma:1", "--bootstrap=toy_model", "sh", "-c", "sleep 1000 & echo up; wait")
    killed.stdout.wait_for(b"up")
    gamma.agent().kill()
    assert killed.wait() == 137  # what the rank has started goes, too: by the environment's psutil


@pytest.mark.gate
def test_trials_of_a_sweep_run_in_the_environment(distrun, hosts, tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import sys, toy_model; print('loss:', sys.argv[1][5:], sys.prefix)\n")
    distrun(
        *("sweep", "--output", str(tmp_path / "results"), "-H", "gamma:1", "--python", PYTHON, "--wdir", "/"),
        *("--ship", str(folder), "--bootstrap=toy_model", "--grid", "--metric", "loss", str(folder / "train.py")),
        "lr=1|2|3",
    ).ended(0, 120)
    logs = sorted((tmp_path / "results" / "logs").iterdir())
    assert len(logs) == 3
    assert all("/root/.cache/distrun/environments/" in path.read_text() for path in logs)


def test_a_requirement_that_cannot_be_had_is_told_with_the_words_of_pip(distrun, hosts):
    text = launch(distrun, "gamma:1,delta:1", "--bootstrap=no-such-package", "true").ended(2, 120).decode()
    assert "2 hosts cannot be used" in text
    assert text.count("No matching distribution found for no-such-package") == 2
    assert "Traceback" not in text
    for host in hosts:
        assert environments(host) == []


def test_what_a_rank_misses_is_named_with_the_option_that_brings_it(distrun, hosts):
    said = launch(distrun, "gamma:1", "python3", "-c", "import numpy").ended(1)
    assert b"gamma has no module 'numpy': install it there, or give --bootstrap=numpy; a module of your own comes " in (
        said
    )


def test_an_environment_that_is_being_made_goes_with_the_launcher(distrun, hosts, index, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    source = tmp_path / "slow"
    source.mkdir()
    (source / "backend.py").write_text(BACKEND.format(fifo=str(fifo)))
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'slow'\nversion = '1'\n"
    )
    gamma, _ = hosts
    job = launch(distrun, "gamma:1", f"--bootstrap=slow@file://{source}", "true")
    assert fifo.read_text() == "building"
    job.process.kill()
    job.wait()
    gamma.assert_gone()
    assert not list((gamma.cache / "environments").glob("*/.complete"))
