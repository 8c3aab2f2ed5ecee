"""Host lists of batch schedulers."""

import json
import re

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.allocation import Allocation, current, flux, is_own_node
from distrun.runner.planning.hosts import Host


def slurm(**variables):
    found = current({"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", **variables})
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


@pytest.mark.parametrize(
    "counts",
    ["2", "2(x4)", "x", "2(x3),", "2(3)", "0(x3)", "2(x99999999999)", f"2(x{'9' * 5000})", f"{'9' * 5000}(x3)"],
)
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
    assert current({"PBS_NODEFILE": str(file), "PBS_NUM_PPN": "4"}).hosts == (Host("a", 4), Host("b", 4))


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


def test_grid_engine_has_a_line_per_queue_of_a_host(tmp_path):
    file = tmp_path / "pe_hostfile"
    lines = ["compute-12 16 all.q@compute-12 UNDEFINED", "compute-13 16 all.q@compute-13 UNDEFINED"]
    file.write_text("\n".join([*lines, "compute-12 4 short.q@compute-12 <NULL>"]) + "\n")
    found = current({"JOB_ID": "1234", "NSLOTS": "36", "PE": "mpi", "PE_HOSTFILE": str(file)})
    assert found == Allocation("Grid Engine", (Host("compute-12", 20), Host("compute-13", 16)), "1234")
    assert current({"JOB_ID": "1234", "NSLOTS": "1"}) is None  # a job without a parallel environment


@pytest.mark.parametrize("line", ["compute-12", "compute-12 x all.q", "compute-12 0 all.q"])
def test_lines_of_grid_engine_that_are_none_are_refused(tmp_path, line):
    file = tmp_path / "pe_hostfile"
    file.write_text(line + "\n")
    with pytest.raises(UsageError, match=f"has the line '{line}', which is no host and number of slots"):
        current({"PE_HOSTFILE": str(file)})


def resources(*parts, nodelist):
    """Return what Flux says of resources, in the form of its RFC 20."""
    execution = {"R_lite": list(parts), "starttime": 0.0, "expiration": 0.0, "nodelist": nodelist}
    return json.dumps({"version": 1, "execution": execution})


@pytest.mark.parametrize(
    ("answer", "hosts"),
    [
        (
            resources({"rank": "0-1", "children": {"core": "0-15"}}, nodelist=["flux-sample-[0-1]"]),
            (Host("flux-sample-0", 16), Host("flux-sample-1", 16)),
        ),
        (
            resources(
                {"rank": "0,2", "children": {"core": "0-7", "gpu": "0-3"}},
                {"rank": "1", "children": {"core": "0", "gpu": "0,2"}},
                {"rank": "3", "children": {"core": "0-63"}},
                nodelist=["n[07-08]", "i-025dbde9417bb3475,n9"],
            ),
            (Host("n07", 4), Host("n08", 2), Host("i-025dbde9417bb3475", 4)),
        ),
    ],
    ids=["cores", "GPUs"],
)
def test_flux_is_asked(answer, hosts):
    asked = []

    def ask(command):
        asked.append(command)
        return answer

    assert flux.read({"FLUX_URI": "local:///run/flux/local"}, ask) == Allocation("Flux", hosts)
    task = {"FLUX_URI": "local:///x", "FLUX_JOB_ID": "f3ABC", "FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"}
    assert flux.read(task, ask) == Allocation("Flux", hosts, "f3ABC")
    assert asked == [["flux", "resource", "R"], ["flux", "job", "info", "f3ABC", "R"]]


@pytest.mark.parametrize(
    "answer",
    ["", "[]", "{}", resources(nodelist=["n1"]), resources({"rank": "0", "children": {"core": "0"}}, nodelist=["a,b"])],
)
def test_flux_says_something_else(answer):
    with pytest.raises(UsageError, match="which is no set of resources: give the hosts with -H"):
        flux.read({"FLUX_URI": "local:///x"}, lambda command: answer)


def test_many_copies_of_the_launcher_by_flux_are_refused():
    task = {"FLUX_URI": "local:///x", "FLUX_JOB_ID": "f3", "FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4"}
    with pytest.raises(UsageError, match="flux run started 4 copies of distrun"):
        current(task)
