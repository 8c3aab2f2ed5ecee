"""Hosts without distrun, or with another one: they get the launcher's, and only what they lack."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from machines.system_packages import call
from shell import wait_until

PYTHON = "/usr/bin/python3"
SHOW = "import distrun, os, socket; print(socket.gethostname(), distrun.__file__)"


@pytest.mark.gate
def test_a_bare_host_gets_distrun_once(distrun, gamma):
    job = distrun("-H", "gamma:2", "--python", PYTHON, "--wdir", "/", "--no-tag-output", "python3", "-c", SHOW)
    assert job.wait() == 0, job.stderr.data
    assert b"host gamma has no distrun: it was sent this one, 0." in job.stderr.data
    lines = job.stdout.data.decode().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("gamma /root/.cache/distrun/packages/") for line in lines)
    assert oct(gamma.cache.stat().st_mode & 0o777) == "0o700"
    gamma.assert_gone()
    job.assert_gone()
    said = distrun("-H", "gamma:1", "--python", PYTHON, "--wdir", "/", "true").ended(0)
    assert b"was sent" not in said


def test_the_python_of_a_bare_host_is_found(distrun, gamma, project, monkeypatch):
    monkeypatch.chdir(project)
    job = distrun("-H", "gamma:1", "--ship", ".", "--no-tag-output", "python", "train.py")
    assert job.wait() == 0, job.stderr.data
    assert b"its python3 is used; it has no distrun: it was sent this one" in job.stderr.data
    assert job.stdout.data.startswith(b"net first rank 0 of 1 in /root/.cache/distrun/trees/")


def test_another_distrun_is_left_alone_and_not_used(distrun, gamma):
    other = gamma.home / "other" / "distrun"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("__version__ = '0.0.7'\n")
    python = gamma.home / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH=/root/other exec {PYTHON} "$@"\n')
    python.chmod(0o755)
    arguments = ("-H", "gamma:1", "--python", "/root/python", "--wdir", "/", "--no-tag-output")
    job = distrun(*arguments, "python3", "-c", SHOW)
    assert job.wait() == 0, job.stderr.data
    assert b"host gamma has another distrun: it was sent this one, 0." in job.stderr.data
    assert job.stdout.data.startswith(b"gamma /root/.cache/distrun/packages/")
    assert (other / "__init__.py").read_text() == "__version__ = '0.0.7'\n"
    said = distrun("--no-bootstrap", *arguments, "true").ended(2)
    assert b"distrun" in said
    assert b"Traceback" not in said


@pytest.mark.gate
def test_without_leave_a_bare_host_is_refused(distrun, gamma):
    said = distrun("--no-bootstrap", "-H", "gamma:1", "--python", PYTHON, "--wdir", "/", "true").ended(2)
    assert b"distrun is not installed for /usr/bin/python3; run there " in said
    assert not gamma.cache.exists()


def test_several_launches_at_once_bring_it_together(distrun, gamma, delta):
    jobs = [
        distrun("-H", "gamma:1,delta:1", "--python", PYTHON, "--wdir", "/", "--no-tag-output", "python3", "-c", SHOW)
        for _ in range(3)
    ]
    for job in jobs:
        assert job.wait() == 0, job.stderr.data
        assert len(job.stdout.data.splitlines()) == 2
    for host in (gamma, delta):
        shelf = host.cache / "packages"
        assert [path for path in shelf.iterdir() if path.name.startswith(".")] == []
        assert sum((path / "distrun").is_dir() for path in shelf.iterdir()) == 1


def size_of(path):
    """Return the size of a file that is renamed when it is complete, which may be now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_launcher_that_is_killed_while_it_sends_leaves_nothing_that_is_used(distrun, output, gamma, project):
    (project / "large").write_bytes(os.urandom(64 << 20))
    # So it takes twenty seconds, in which it is seen that it has begun, however busy the machine is.
    call("tc", "qdisc", "add", "dev", gamma.link, "root", "tbf", "rate", "25mbit", "burst", "64kb", "limit", "1mb")
    try:
        job = distrun("-v", "--ship", str(project), "-H", "gamma:1", "--python", PYTHON, "--wdir", str(project), "true")
        blobs = gamma.cache / "blobs"
        wait_until(lambda: any(size_of(path) for path in blobs.glob(".distrun-half-*")))
        job.process.kill()
        job.wait()
    finally:
        call("tc", "qdisc", "del", "dev", gamma.link, "root")
    gamma.assert_gone()
    assert not [path for path in blobs.glob("??/*") if path.stat().st_size > 1 << 20]
    printed = output(
        "--ship", str(project), "-H", "gamma:1", "--python", PYTHON, "--wdir", str(project), "cat", "train.py"
    )
    assert b"net.NAME" in printed


def test_a_full_disk_is_told_in_a_sentence(distrun, gamma, project):
    (project / "large").write_bytes(bytes(8 << 20))
    assert gamma.enter("mount", "-t", "tmpfs", "-o", "size=4m", "none", "/root") == 0
    try:
        command = ("-H", "gamma:1", "--python", PYTHON, "--wdir", "/", "true")
        text = distrun("--ship", str(project), *command).ended(2).decode()
        assert "host gamma cannot be used" in text
        assert "cannot be written: No space left on device; make room" in text
        assert "Traceback" not in text
        assert gamma.enter("sh", "-c", "rm -rf /root/.cache && mount -o remount,size=9m /root") == 0
        assert distrun(*command).wait() == 0
        gamma.enter("dd", "if=/dev/zero", "of=/root/filling", "status=none")
        text = distrun("--bootstrap", *command).ended(2).decode()
        assert "cannot be made with /usr/bin/python3: " in text
        assert "No space left on device; make room there, or set XDG_CACHE_HOME there to a folder elsewhere" in text
    finally:
        gamma.enter("umount", "/root")


def test_a_home_that_cannot_be_written_is_no_obstacle(output, gamma):
    assert gamma.enter("mount", "-t", "tmpfs", "-o", "ro", "none", "/root") == 0
    assert gamma.enter("mount", "-t", "tmpfs", "none", "/var/tmp") == 0
    try:
        printed = output("-H", "gamma:1", "--python", PYTHON, "--wdir", "/", "--no-tag-output", "python3", "-c", SHOW)
        assert f"/distrun-{os.getuid()}/packages/".encode() in printed
    finally:
        gamma.enter("umount", "/root")
        gamma.enter("umount", "/var/tmp")
        shutil.rmtree(f"/tmp/distrun-{os.getuid()}", ignore_errors=True)


def test_the_sweep_after_an_agent_that_was_killed_finds_distrun_where_it_was_brought(distrun, gamma):
    job = distrun("-H", "gamma:2", "--python", PYTHON, "--wdir", "/", "-v", "sleep", "1000")
    job.stderr.wait_for(b"rank 1 on gamma started")
    gamma.agent().kill()
    assert job.wait() == 137


@pytest.mark.gate
def test_doctor_brings_itself_and_tells(distrun, gamma):
    job = distrun("doctor", "--json", "-H", "gamma", "--python", PYTHON, "--wdir", "/")
    job.wait()
    (host,) = json.loads(job.stdout.data)["hosts"]
    found = {step["step"]: step for step in host["steps"]}
    assert found["distrun"]["status"] == "ok"
    assert "the host has no distrun: it was sent this one" in found["distrun"]["text"]
    assert found["machine"]["status"] != "not tried"


def test_a_bare_host_that_comes_to_an_elastic_job_gets_the_code_of_the_start(distrun, gamma, delta, project, tmp_path):
    go = tmp_path / "go"
    os.mkfifo(go)
    (project / "wait.py").write_text(
        "import os, socket\nfrom models import net\n"
        "print(net.NAME, socket.gethostname(), os.environ['WORLD_SIZE'], flush=True)\n"
        f"os.environ['WORLD_SIZE'] == '2' or exit(open({str(go)!r}).read())\n"
    )
    listing = tmp_path / "hosts"
    listing.write_text("echo gamma:1\n")
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n. {listing}\n")
    script.chmod(0o755)
    ship = ("--ship", str(project), "--wdir", str(project), "--python", PYTHON, "--no-tag-output")
    elastic = ("--min-np", "1", "--max-np", "2", "--max-restarts", "2", "--hosts-from", str(script))
    job = distrun("-v", *elastic, *ship, "python3", "wait.py")
    job.stdout.wait_for(b"first gamma 1")
    (project / "models" / "net.py").write_text("NAME = 'second'\n")
    listing.write_text("echo gamma:1; echo delta:1\n")
    job.stderr.wait_for(b"agent on delta started")
    go.write_text("the rank fails, and all start again")
    job.stdout.wait_for(b"first delta 2")
    assert job.wait() == 0, job.stderr.data
