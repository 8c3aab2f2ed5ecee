"""Command lines of torchrun become ours."""

import sys

import pytest

from distrun.errors import UsageError
from distrun.runner.command_lines.torchrun import PROGRAM
from distrun.runner.command_lines.translate import translate

DEFAULTS = ["--no-tag-output", "--nproc-per-node", "1", "--torchrun-env"]
PYTHON = f"{sys.executable} -u"


def ours(line, **environ):
    translation = translate(PROGRAM, line.split(), environ)
    return translation.arguments, translation.description()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py --lr 1", f"{PYTHON} train.py --lr 1"),
        ("--standalone --nproc_per_node=4 train.py", f"--nproc-per-node 4 {PYTHON} train.py"),
        ("--nproc-per-node gpu -m pkg.train", f"--nproc-per-node gpu {PYTHON} -m pkg.train"),
        ("--no-python --nnodes 1:1 ./train", "--nnodes 1:1 ./train"),
        (
            "--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=a:29500 --rdzv_id 7 --rdzv-conf timeout=9 train.py",
            f"--nnodes 2:4 --rdzv-endpoint a:29500 --rdzv-id 7 --rdzv-conf timeout=9 {PYTHON} train.py",
        ),
        (
            "--nnodes 2 --node_rank 1 --master_addr 10.0.0.1 --master_port 1234 train.py",
            f"--nnodes 2 --node-rank 1 --rdzv-endpoint 10.0.0.1:1234 {PYTHON} train.py",
        ),
        (
            "--nnodes 2 --master-addr [fd00::1] train.py",
            f"--nnodes 2 --rdzv-endpoint [fd00::1]:29500 {PYTHON} train.py",
        ),
        ("--nnodes 1 --master-addr a --master-port 1 train.py", f"--nnodes 1 {PYTHON} train.py"),
        (
            "--log-dir out -r 3 --local-ranks-filter 0 train.py",
            f"--output-dir out --redirect 3 --local-rank-filter 0 {PYTHON} train.py",
        ),
        ("--log_dir out -t 3 -r 0 train.py", f"--output-dir out --tag-output {PYTHON} train.py"),
        ("--role trainer --shutdown-timeout 9 train.py", f"-x ROLE_NAME=trainer --grace 9 {PYTHON} train.py"),
        ("--local-addr 10.0.0.3 --numa-binding node x.py", f"--network 10.0.0.3 --bind-to numa {PYTHON} x.py"),
        ("--start-method fork --monitor-interval 1 --run-path x.py", f"{PYTHON} x.py"),
        ("--max-restarts 3 x.py", f"--reset-limit 3 {PYTHON} x.py"),
        ("--nnodes 1:1 --max-restarts 3 x.py", f"--nnodes 1:1 --reset-limit 3 {PYTHON} x.py"),
    ],
)
def test_flags_become_ours(line, expected):
    assert ours(line) == ([*DEFAULTS, *expected.split()], "")


def test_variables_stand_for_flags_that_are_not_given():
    environ = {"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "a:1", "PET_NPROC_PER_NODE": "4", "PET_NO_PYTHON": "1"}
    found = ours("--nproc-per-node 3 cmd", **environ, PET_STANDALONE="0")[0]
    options = "--nnodes 2 --nproc-per-node 4 --rdzv-endpoint a:1 --nproc-per-node 3 cmd"
    assert found == [*DEFAULTS, *options.split()]


def test_another_python_may_run_the_script(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "python3.12")
    assert ours("train.py")[0][len(DEFAULTS) :] == ["python3.12", "-u", "train.py"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--nnodes 2 --max-restarts 3", "ignored: --max-restarts 3 (ranks are restarted where one launcher starts"),
        ("--local-addr me", "addresses are told, not names"),
        ("--event-log-handler console --logs-specs mine", "the first failure is told"),
    ],
)
def test_what_changes_nothing_is_told(line, why):
    assert why in ours(f"{line} train.py")[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--rdzv-backend etcd", "torchrun --rdzv-backend etcd: the launchers meet without a server"),
        ("--virtual-local-rank", "every rank sees all GPUs"),
        ("--no-python -m", "--no-python and --module exclude each other"),
        ("--numa-binding far", "allowed are node, socket, exclusive, core-complex"),
    ],
)
def test_what_cannot_be_met_is_refused(line, words):
    with pytest.raises(UsageError) as refused:
        ours(f"{line} train.py")
    assert words in str(refused.value)


def test_every_flag_of_the_installed_torchrun_is_known():
    """Read from its source, since a unit test does not import torch."""
    import importlib.util
    import re
    from pathlib import Path

    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        pytest.skip("torch is not installed")
    source = Path(found.origin).with_name("distributed").joinpath("run.py").read_text()
    theirs = set(re.findall(r'^        "(--?[a-z][a-z_-]*)",$', source, re.MULTILINE))
    ours = {name for flag in PROGRAM.flags for name in flag.names}
    assert len(theirs) > 40
    assert theirs <= ours
