"""The user's code on hosts without a shared file system: what travels, and what a job sees of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

PYTHON = "/usr/bin/python3"
BARE = ("--python", PYTHON, "--no-tag-output")
LIST = (
    "import json, os; found = {}\n"
    "for folder, folders, names in os.walk('.'):\n"
    "    for name in [*folders, *names]:\n"
    "        path = os.path.join(folder, name); mode = oct(os.lstat(path).st_mode & 0o777)\n"
    "        found[path[2:]] = os.readlink(path) if os.path.islink(path) else mode\n"
    "print(json.dumps(found), flush=True)\n"
)


@pytest.fixture
def ship(distrun, project, monkeypatch):
    """Starts distrun in the project's folder, with --ship . before other arguments."""
    monkeypatch.chdir(project)
    return lambda *arguments, **environ: distrun("--ship", ".", *BARE, *arguments, **environ)


def seen(job):
    """Return the paths that ranks of LIST see, with modes and the targets of links."""
    assert job.wait() == 0, job.stderr.data
    (line,) = set(job.stdout.data.splitlines())
    return json.loads(line)


@pytest.mark.gate
def test_a_script_runs_on_two_hosts_that_have_nothing_of_it(ship, gamma, delta):
    job = ship("-H", "gamma:2,delta:1", "python3", "train.py", "--epochs", "3")
    assert job.wait() == 0, job.stderr.data
    lines = sorted(job.stdout.data.decode().splitlines())
    assert [line.rpartition(" in ")[0] for line in lines] == [f"net first rank {rank} of 3" for rank in range(3)]
    assert all("/root/.cache/distrun/trees/" in line and line.endswith("--epochs 3") for line in lines)
    for host in (gamma, delta):
        host.assert_gone()
        assert sorted(path.name for path in host.home.iterdir()) == [".cache"]


@pytest.mark.gate
def test_what_changes_travels_and_what_goes_vanishes(ship, gamma, project):
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "private.py").write_text("KEY = 1\n")
    (project / "private.py").chmod(0o600)
    (project / "latest").symlink_to("models/net.py")
    (project / "whole").symlink_to(project / "models")
    first = seen(ship("-H", "gamma:1", "python3", "-c", LIST))
    assert first["run.sh"] == "0o755"
    assert first["private.py"] == "0o600"
    assert first["latest"] == "models/net.py"
    assert first["whole"] == "models"
    assert "key.secret" not in first
    assert "data" not in first
    (project / "models" / "net.py").write_text("NAME = 'other'\n")
    (project / "run.sh").rename(project / "start.sh")
    (project / "private.py").unlink()
    (project / "latest").unlink()
    second = seen(job := ship("-v", "-H", "gamma:1", "python3", "-c", LIST))
    assert second["start.sh"] == "0o755"
    assert not {"run.sh", "private.py", "latest"} & second.keys()
    job = ship("-H", "gamma:1", "python3", "train.py")
    assert job.wait() == 0, job.stderr.data
    assert b"net other" in job.stdout.data
    blobs = list((gamma.cache / "blobs").glob("??/*"))
    assert not any(b"hidden" in path.read_bytes() for path in blobs)


def test_a_running_job_keeps_its_code_while_another_gets_the_new(ship, gamma, project, tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    (project / "wait.py").write_text(f"open({str(go)!r}).read()\nfrom models import net\nprint(net.NAME)\n")
    job = ship("-H", "gamma:1", "-v", "python3", "-u", "wait.py")
    job.stderr.wait_for(b"rank 0 on gamma started")
    (project / "models" / "net.py").write_text("NAME = 'second'\n")
    other = ship("-H", "gamma:1", "python3", "-c", "from models import net; print(net.NAME)")
    assert other.wait() == 0, other.stderr.data
    assert other.stdout.data == b"second\n"
    go.write_text("go")
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data == b"first\n"


def test_what_a_rank_writes_into_its_code_is_not_in_the_next_job(ship, gamma):
    spoil = "open('models/net.py', 'a').write('broken('); open('result', 'w').write('1')"
    ship("-H", "gamma:1", "python3", "-c", spoil).ended(0)
    found = seen(ship("-H", "gamma:1", "python3", "-c", f"from models import net\n{LIST}"))
    assert "result" not in found


@pytest.mark.gate
def test_damaged_contents_are_sent_again(ship, gamma):
    assert ship("-H", "gamma:1", "python3", "train.py").wait() == 0
    for path in [*(gamma.cache / "blobs").glob("??/*"), *(gamma.cache / "packages").glob("*/distrun/errors.py")]:
        path.write_bytes(b"damaged")
    job = ship("-H", "gamma:1", "python3", "train.py")
    assert job.wait() == 0, job.stderr.data
    assert b"net first" in job.stdout.data
    assert b"was sent" in job.stderr.data


@pytest.mark.gate
def test_a_named_folder_is_kept_with_what_else_is_in_it(distrun, gamma, project, monkeypatch):
    monkeypatch.chdir(project / "models")
    train = f"import os; open('weights', 'w').write('w'); os.chdir('..')\n{LIST}"
    arguments = ("--ship", f"{project}:work/code", *BARE, "-H", "gamma:1", "python3", "-c", train)
    first = seen(distrun(*arguments))
    assert (gamma.home / "work" / "code" / "models" / "weights").read_text() == "w"
    (project / "models" / "net.py").unlink()
    (project / "new.py").write_text("")
    second = seen(distrun(*arguments))
    assert second.keys() - first.keys() == {"new.py"}
    assert first.keys() - second.keys() == {"models/net.py"}
    assert "models/weights" in second
    shutil.rmtree(project / "models")
    (project / "models").symlink_to("elsewhere")
    monkeypatch.chdir(project)
    said = distrun(*arguments).ended(2)
    assert (
        b"host gamma cannot be used, so no rank was started: /root/work/code/models holds files that were not shipped, "
        b"and is no folder any more in what is shipped: move that away there, or name another folder by --ship "
        b"DIR:REMOTE\n"
    ) in said
    assert (gamma.home / "work" / "code" / "models" / "weights").read_text() == "w"


@pytest.fixture
def in_python(project, home):
    """Runs a program in the project's folder."""

    def run(code: str) -> str:
        environ = {**os.environ, "HOME": str(home.directory), "SSH_AUTH_SOCK": "", "PYTHONPATH": str(project)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=project, env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("reached_by", [f"python={PYTHON!r}", f"ssh=SshOptions(python={PYTHON!r})"])
def test_a_function_finds_the_modules_that_were_shipped(project, gamma, in_python, reached_by):
    (project / "call.py").write_text(
        "import os, distrun\nfrom models import net\n"
        "def where(word):\n    import socket\n    return word, net.NAME, socket.gethostname(), os.getcwd()\n"
        "if __name__ == '__main__':\n"
        "    from distrun.runner.planning.ssh_config import SshOptions\n    import call\n"
        f"    print(distrun.run(call.where, ('x',), np=2, hosts='gamma:2', {reached_by}, ship='.'))\n"
    )
    printed = in_python("import runpy; runpy.run_path('call.py', run_name='__main__')")
    assert printed.count("'x', 'first', 'gamma', '/root/.cache/distrun/trees/") == 2


def test_a_cell_of_a_notebook_is_brought_along(gamma, in_python):
    cell = "import socket, sys\nfrom models import net\nprint(net.NAME, socket.gethostname(), sys.argv[1:])"
    line = f"-H gamma:2 --python {PYTHON} --ship . -q -- --epochs 3"
    printed = in_python(f"from distrun.tools.notebook import run_cell; run_cell({line!r}, {cell!r})")
    assert sorted(printed.splitlines()) == [f"[{rank}] first gamma ['--epochs', '3']" for rank in range(2)]


def test_trials_of_a_sweep_run_the_script_that_was_shipped_with_the_python_of_their_host(
    distrun, gamma, project, tmp_path
):
    (project / "try.py").write_text(
        "import sys\nfrom models import net\nprint('loss:', sys.argv[1][5:], net.NAME, __file__, sys.executable)\n"
    )
    job = distrun(
        *("sweep", "--output", str(tmp_path / "results"), "-H", "gamma:1", "--wdir", "/", "--ship", str(project)),
        *("--grid", "--metric", "loss", str(project / "try.py"), "lr=1|2|3"),
    )
    assert b"its python3 is used; it has no distrun: it was sent this one" in job.ended(0)
    logs = sorted((tmp_path / "results" / "logs").iterdir())
    assert len(logs) == 3
    for number, path in enumerate(logs, start=1):
        said = path.read_text()
        assert f"loss: {number} first /root/.cache/distrun/trees/" in said
        assert f"/try.py {PYTHON}" in said


def test_what_a_trial_misses_is_named_with_the_option_that_brings_it(distrun, gamma, tmp_path):
    output = tmp_path / "results"
    said = distrun(
        *("sweep", "--output", str(output), "-H", "gamma:1", "--python", PYTHON, "--wdir", "/"),
        *("--grid", "python3", "-c", "import numpy", "x=1|2"),
    ).ended(1)
    remedy = "gamma has no module 'numpy': install it there, or give --bootstrap=numpy; a module of your own comes with"
    assert said.decode().count(remedy) == 2
    assert (output / "trials.jsonl").read_text().count("or give --bootstrap=numpy") == 2


def test_too_much_is_refused_with_the_largest_files(ship, gamma, project):
    (project / "weights.bin").write_bytes(bytes(3 << 20))
    text = ship("--ship-limit", "2M", "-H", "gamma:1", "true").ended(2).decode()
    assert "weights.bin (3.0 MiB)" in text
    assert "allowed are 2.0 MiB" in text
