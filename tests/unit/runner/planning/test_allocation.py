"""Host lists of batch schedulers."""

from __future__ import annotations

import re

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.allocation import Allocation, current, is_own_node
from distrun.runner.planning.hosts import Host


def slurm(**variables):
    found = current({"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", **variables})
    assert found is not None
    assert found.scheduler == "Slurm"
    assert [host.name for host in found.hosts] == ["n1", "n2", "n3"]
    return [host.slots for host in found.hosts]


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({}, [1, 1, 1]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, [2, 2, 1]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "1,2(x2)", "SLURM_GPUS_PER_NODE": "4"}, [1, 2, 2]),
        ({"SLURM_NTASKS_PER_NODE": "3", "SLURM_TASKS_PER_NODE": "3(x3)"}, [3, 3, 3]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_GPUS_PER_NODE": "4"}, [4, 4, 4]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_GPUS_PER_NODE": "a100:8"}, [8, 8, 8]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_GPUS_ON_NODE": "2"}, [2, 2, 2]),
        ({"SLURM_TASKS_PER_NODE": "1(x3)", "SLURM_JOB_CPUS_PER_NODE": "8(x3)"}, [1, 1, 1]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),4"}, [8, 8, 4]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),1", "SLURM_CPUS_PER_TASK": "4"}, [2, 2, 1]),
    ],
)
def test_slurm_slots(variables, slots):
    assert slurm(**variables) == slots


@pytest.mark.parametrize("counts", ["2", "2(x4)", "x", "2(x3),", "2(3)", "0(x3)", "2(x99999999999)"])
def test_slurm_counts_that_do_not_fit_are_refused(counts):
    with pytest.raises(UsageError, match=re.escape(f"SLURM_TASKS_PER_NODE={counts!r}")):
        slurm(SLURM_TASKS_PER_NODE=counts)


def test_a_shell_that_srun_started_knows_the_cores_only():
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_TASKS_PER_NODE": "1"}
    assert slurm(**step, SLURM_JOB_CPUS_PER_NODE="4(x3)", SLURM_CPUS_PER_TASK="2") == [2, 2, 2]
    assert slurm(**step, SLURM_GPUS_PER_NODE="8") == [8, 8, 8]


def test_many_copies_of_the_launcher_are_refused():
    with pytest.raises(UsageError, match="srun started 4 copies of distrun"):
        slurm(SLURM_STEP_NUM_TASKS="4")
    assert slurm(SLURM_STEP_NUM_TASKS="1") == [1, 1, 1]


def test_nobody_has_allocated_anything():
    assert current({}) is None
    assert current({"SLURM_JOB_NODELIST": "a"}) is None
    assert current({"LSB_JOBID": "3"}) is None


@pytest.mark.parametrize(
    ("variables", "own"),
    [
        ({}, False),  # the shell of salloc, on a machine that may also be a node
        ({"SLURMD_NODENAME": "a"}, True),
        ({"SLURMD_NODENAME": "b"}, False),
        ({"SLURMD_NODENAME": "a", "SLURM_STEP_ID": "4294967290"}, True),
        ({"SLURMD_NODENAME": "a", "SLURM_STEP_ID": "0"}, False),
    ],
)
def test_whose_node_this_is(variables, own):
    assert is_own_node(variables, "a") is own


def test_pbs_has_a_line_per_slot(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("a\na\nb\na\nc\n")
    found = current({"PBS_JOBID": "12.server", "PBS_NODEFILE": str(file), "PBS_NUM_PPN": "7"})
    assert found == Allocation("PBS", (Host("a", 3), Host("b", 1), Host("c", 1)), "12.server")
    assert str(found) == "PBS job 12.server: a:3,b:1,c:1"


def test_pbs_with_a_line_per_host(tmp_path):
    file = tmp_path / "nodes"
    file.write_text("a\nb\n")
    found = current({"PBS_NODEFILE": str(file), "PBS_NUM_PPN": "4"})
    assert found is not None
    assert found.hosts == (Host("a", 4), Host("b", 4))


@pytest.mark.parametrize(("content", "complaint"), [(None, "cannot be read: No such file"), ("\n", "names no host")])
def test_a_bad_file_is_told(tmp_path, content, complaint):
    file = tmp_path / "nodes"
    if content is not None:
        file.write_text(content)
    for variables in ({"PBS_NODEFILE": str(file)}, {"LSB_JOBID": "1", "LSB_DJOB_HOSTFILE": str(file)}):
        with pytest.raises(UsageError, match=f"{list(variables)[-1]}='.*' {complaint}"):
            current(variables)


def test_lsf_in_its_three_ways(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a\na\nb\nb\n")
    expected = Allocation("LSF", (Host("a", 2), Host("b", 2)), "5")
    for variables in (
        {"LSB_DJOB_HOSTFILE": str(file), "LSB_HOSTS": "x"},
        {"LSB_MCPU_HOSTS": "a 2 b 2", "LSB_HOSTS": "x"},
        {"LSB_HOSTS": "a a b b"},
    ):
        assert current({"LSB_JOBID": "5", **variables}) == expected


@pytest.mark.parametrize("text", ["a", "a 2 b", "a x", "a 0"])
def test_lsf_lists_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match=f"LSB_MCPU_HOSTS='{text}'"):
        current({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": text})
