"""`distrun doctor` on this machine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from distrun import __version__
from distrun.host.gpus import visible_gpus
from distrun.tools.doctor.probe import Probe, answer

pytestmark = pytest.mark.gate


def test_this_machine_is_examined_without_ssh(output):
    report = json.loads(output("doctor", "--json"))
    (host,) = report["hosts"]
    assert (host["host"], host["local"]) == ("localhost", True)
    steps = [step["step"] for step in host["steps"]]
    assert steps == ["python", "distrun", "directory", "machine", "gpus", "network", "software"]
    assert host["steps"][1]["text"] == __version__
    assert host["machine"]["cores"] >= 1
    assert "numpy" in host["machine"]["packages"]
    assert host["gpus"]["names"] == [] or host["gpus"]["driver"]
    assert report["links"] == []


def test_a_missing_directory_fails_here_too(distrun):
    job = distrun("doctor", "--wdir", "/no/such/place")
    assert job.wait() == 1
    assert b"failed     directory   the working directory '/no/such/place' does not exist" in job.stdout.data
    assert b"by hand: ls -ld /no/such/place" in job.stdout.data


@pytest.mark.skipif(bool(visible_gpus(os.environ)), reason="there is an NVIDIA GPU here")
def test_without_a_gpu_there_is_one_sentence_about_gpus_and_nothing_failed(distrun):
    job = distrun("doctor", "--gpu")
    assert job.wait() == 0
    assert b"warning    gpus        there is no NVIDIA GPU, or its driver does not show it here" in job.stdout.data
    assert b"topology" not in job.stdout.data
    job.assert_gone()


def test_the_launcher_does_not_load_the_doctor_nor_the_doctor_numpy():
    code = "import sys, distrun.cli; assert 'distrun.tools.doctor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import sys, distrun.tools.doctor.run, distrun.tools.doctor.probe\n"
        "assert not {'numpy', 'mpi4py', 'torch', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("line", [b"", b"[]", b'{"ask": "_listener"}', b'{"ask": "clock", "more": 1}', b"\xff"])
def test_a_request_that_makes_no_sense_is_answered_with_an_error(line):
    assert list(answer(Probe(), line)) == ["error"]


def test_a_probe_leaves_when_its_stdin_ends_and_its_children_with_it(tmp_path):
    fifo = tmp_path / "fifo"
    subprocess.run(["mkfifo", str(fifo)], check=True)
    tool = tmp_path / "mpirun"
    tool.write_text(f"#!/bin/sh\nexec 3>{fifo}\nexec sleep 1000\n")
    tool.chmod(0o755)
    code = f"import sys; sys.executable = {str(tool)!r}; from distrun.tools.doctor.probe import main; main()"
    probe = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    probe.stdin.write(b'{"ask": "machine"}\n')
    probe.stdin.flush()
    with open(fifo, "rb") as held:  # waits until the child is there
        probe.stdin.close()
        assert probe.wait(30) == 0
        assert held.read() == b""  # waits until the child is gone
    probe.stdout.close()


@pytest.fixture
def slurm(tmp_path):
    """The environment of an allocation of two nodes, both this machine with a name each, whose srun is a few lines."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        "#!/bin/sh\n"
        'while case "$1" in --nodelist=*) node=${1#*=};; --*) ;; *) false;; esac; do shift; done\n'
        'if [ "$node" = down ]; then echo "srun: error: Required node not available (down, drained)" >&2; exit 1; fi\n'
        'if [ ! -x "$1" ]; then echo "slurmstepd: error: execve(): $1: No such file or directory" >&2; exit 2; fi\n'
        '[ "$(id -u)" = 0 ] || own="--user --map-root-user"\n'
        'exec unshare $own --uts sh -c \'hostname "$0" && exec "$@"\' "$node" "$@"\n'
    )
    srun.chmod(0o755)
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        "PATH": f"{srun.parent}:/usr/bin:/bin",
    }


def examine(distrun, *arguments, **environ):
    """The steps of each host, by name, and the exit status."""
    job = distrun("doctor", "--json", *arguments, **environ)
    status = job.wait()
    report = json.loads(job.stdout.data)
    return {host["host"]: {step["step"]: step for step in host["steps"]} for host in report["hosts"]}, report, status


def test_the_nodes_of_a_slurm_allocation_are_reached_by_srun(distrun, slurm):
    hosts, report, status = examine(distrun, **slurm)
    assert status == 0, report["summary"]
    assert list(hosts) == ["node1", "node2"]
    assert list(hosts["node1"])[:5] == ["srun", "python", "distrun", "directory", "clock"]
    assert [link["status"] for link in report["links"]] != []


def test_nodes_that_slurm_does_not_give_and_a_wrong_python_there(distrun, slurm):
    hosts, _, status = examine(distrun, **{**slurm, "SLURM_JOB_NODELIST": "node1,down"})
    assert status == 1
    step = hosts["down"]["srun"]
    assert step["status"] == "failed"
    assert "Required node not available (down, drained)" in step["text"]
    assert step["command"] == "srun --overlap --nodes=1 --ntasks=1 --nodelist=down sh -c hostname"
    assert hosts["down"]["python"]["status"] == "not tried"
    assert hosts["node1"]["clock"]["status"] == "ok"
    hosts, _, status = examine(distrun, "-H", "node1", "--python", "/no/such/python", **slurm)
    assert status == 1
    assert hosts["node1"]["python"]["status"] == "failed"
    assert "--python" in hosts["node1"]["python"]["remedy"]
