"""Every environment reads the same kind of topology out of its own variables. Whole clusters stand in the fixtures."""

import os
import socket

import pytest

from distrun.contract.launch import LaunchContract
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.world.environments import detect
from distrun.runtime.world.environments.base import even_topology
from distrun.runtime.world.environments.hydra import _ancestors
from distrun.runtime.world.environments.slurm import ranks_per_host

HERE = socket.gethostname()

CONTRACT = LaunchContract(
    job="0f" * 16,
    key="ab" * 32,
    rank=5,
    size=8,
    local_rank=1,
    local_size=2,
    cross_rank=2,
    cross_size=4,
    hostname="nodeC",
    master_addr="nodeA",
    master_port=29400,
)
DISTRUN = CONTRACT.to_environ()
OPENMPI_5 = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-2821@1",
    "PMIX_RANK": "3",
    "PMIX_SERVER_URI2": "prterun-vm-2821@0.1;tcp4://127.0.0.1:58787",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_HOSTNAME": "a"}
# A batch script: everything but a step.
SBATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "5",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "node01",
}
# Fourth task of `srun -n 5` on three hosts.
SRUN = {
    **SBATCH,
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "node[01-03]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "node02",
}
ENV_URL = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "nodeA",
    "MASTER_PORT": "46123",
    "TORCHELASTIC_RUN_ID": "850b6222-1f75-41d3-88aa-873b994d9e42",
    "TORCHELASTIC_RESTART_COUNT": "0",
}

FLUX = {
    "FLUX_URI": "local:///run/flux/local",
    "FLUX_JOB_ID": "f3ABC",
    "FLUX_TASK_RANK": "2",
    "FLUX_JOB_SIZE": "4",
    "FLUX_TASK_LOCAL_ID": "0",
    "FLUX_JOB_NNODES": "2",
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "PMI_FD": "11",
}
BATCH = {
    "AWS_BATCH_JOB_ID": "7b2e1c3a#1",
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.12.7",
}
AZURE = {
    "AZUREML_NODE_COUNT": "2",
    "AZUREML_RUN_ID": "calm_rice_4kj2m",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "6105",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
}


@pytest.mark.parametrize(
    ("environ", "name", "topology"),
    [
        (DISTRUN, "distrun", Topology(5, 8, 1, 2, 2, 4, "nodeC")),
        (OPENMPI_5, "Open MPI", Topology(3, 4, 1, 2, 1, 2, HERE)),
        (HYDRA, "Hydra", Topology(1, 2, 1, 2, 0, 1, HERE)),
        (SRUN, "Slurm's srun", Topology(3, 5, 1, 2, 1, 2, "node02")),
        (TORCHRUN, "torchrun", Topology(3, 4, 1, 2, 1, 2, HERE)),
        (ENV_URL, "a launcher for env:// (RANK, WORLD_SIZE)", Topology(1, 2, 1, 2, 0, 1, HERE)),
        (FLUX, "Flux", Topology(2, 4, 0, 2, 1, 2, HERE)),
        (BATCH, "AWS Batch", Topology(1, 2, 0, 1, 1, 2, HERE)),
        (AZURE, "Azure ML", Topology(5, 8, 1, 4, 1, 2, HERE)),
        ({}, "no launcher", Topology(0, 1, 0, 1, 0, 1, HERE)),
    ],
    ids=["distrun", "openmpi", "hydra", "slurm", "torchrun", "env_url", "flux", "aws_batch", "azure_ml", "single"],
)
def test_each_launcher_is_recognised_and_its_topology_read(environ, name, topology):
    environment = detect(environ)
    assert environment.name == name
    assert environment.topology() == topology


NESTED = {
    "distrun that also set Open MPI's variables": ({**DISTRUN, **CONTRACT.openmpi_environ()}, "distrun"),
    "distrun inside srun": ({**SRUN, **DISTRUN}, "distrun"),
    "mpirun inside sbatch": ({**SBATCH, **OPENMPI_5}, "Open MPI"),
    "mpiexec whose proxies srun started": ({**SRUN, **HYDRA}, "Hydra"),
    "torchrun inside srun": ({**SRUN, **TORCHRUN}, "torchrun"),
    "torchrun inside mpirun": ({**OPENMPI_5, **TORCHRUN}, "torchrun"),
    "srun with RANK exported by hand": ({**SRUN, **ENV_URL}, "Slurm's srun"),
    "python inside sbatch": (SBATCH, "no launcher"),
    "python inside the batch step": ({**SBATCH, "SLURM_STEP_ID": "4294967291"}, "no launcher"),
    "python inside salloc's interactive step": (
        {**SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        "no launcher",
    ),
    "srun with a PMI of its own": ({"PMI_RANK": "0", "PMI_SIZE": "4", **SRUN}, "Slurm's srun"),
    "flux run inside srun": ({**SRUN, **FLUX}, "Flux"),
    "mpirun inside flux run": ({**FLUX, **OPENMPI_5}, "Open MPI"),
    "python in a shell of flux alloc": ({"FLUX_URI": "local:///run/flux/local"}, "no launcher"),
    "torchrun on AWS Batch": ({**BATCH, **TORCHRUN}, "torchrun"),
    "RANK exported on AWS Batch": ({**BATCH, **ENV_URL}, "AWS Batch"),
    "all variables of env:// on AWS Batch": (
        {**BATCH, **ENV_URL, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        "a launcher for env:// (RANK, WORLD_SIZE)",
    ),
    "mpirun on Azure ML": ({**AZURE, **OPENMPI_5}, "Open MPI"),
    "python on a single node of Azure ML": ({"AZUREML_NODE_COUNT": "1", "AZUREML_RUN_ID": "x"}, "no launcher"),
}


@pytest.mark.parametrize(("environ", "name"), NESTED.values(), ids=NESTED)
def test_of_two_launchers_the_inner_one_counts(environ, name):
    assert detect(environ).name == name


def test_only_distrun_has_a_job_key():
    assert detect(DISTRUN).job_key() == bytes.fromhex("ab" * 32)
    assert all(detect(environ).job_key() is None for environ in (OPENMPI_5, HYDRA, SRUN, TORCHRUN, ENV_URL, {}))


def test_a_broken_job_key_is_refused_without_showing_it():
    with pytest.raises(UsageError, match="DISTRUN_KEY is not") as refusal:
        detect({**DISTRUN, "DISTRUN_KEY": "open sesame"}).job_key()
    assert "sesame" not in str(refusal.value)


@pytest.mark.parametrize(
    ("environ", "of_another_rank", "of_another_job"),
    [
        (DISTRUN, {"DISTRUN_RANK": "4", "DISTRUN_LOCAL_RANK": "0"}, {"DISTRUN_JOB": "0e" * 16}),
        (DISTRUN, {"DISTRUN_RANK": "4"}, {"DISTRUN_HOSTNAME": "127.0.0.1"}),
        (OPENMPI_5, {"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}, {"PMIX_NAMESPACE": "prterun-vm-2899@1"}),
        (SRUN, {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}, {"SLURM_STEP_ID": "1"}),
        (SRUN, {"SLURM_PROCID": "2"}, {"SLURM_JOB_ID": "4712"}),
        (TORCHRUN, {"RANK": "2", "LOCAL_RANK": "0"}, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (TORCHRUN, {"RANK": "2"}, {"GROUP_RANK": "0"}),
        (ENV_URL, {"RANK": "0"}, {"MASTER_PORT": "29501"}),
        (FLUX, {"FLUX_TASK_RANK": "3", "FLUX_TASK_LOCAL_ID": "1"}, {"FLUX_JOB_ID": "f3ABD"}),
        (AZURE, {"RANK": "4", "LOCAL_RANK": "0"}, {"AZUREML_RUN_ID": "calm_rice_4kj2n"}),
        (AZURE, {"RANK": "4", "LOCAL_RANK": "0"}, {"NODE_RANK": "0"}),
    ],
)
def test_ranks_of_a_job_share_its_name_and_other_jobs_have_another(environ, of_another_rank, of_another_job):
    assert detect({**environ, **of_another_rank}).job_name() == detect(environ).job_name()
    assert detect({**environ, **of_another_job}).job_name() != detect(environ).job_name()


def test_open_mpi_4_names_the_job_by_a_number():
    numbered = {**OPENMPI_5, "OMPI_MCA_ess_base_jobid": "3117088769"}
    del numbered["PMIX_NAMESPACE"]
    assert "3117088769" in detect(numbered).job_name()


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["plain python", "a world of one"])
def test_a_lonely_process_has_a_name_of_its_own_that_stays(environ):
    environment = detect(environ)
    assert environment.job_name() == environment.job_name() != detect(environ).job_name()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**OPENMPI_5, "OMPI_COMM_WORLD_SIZE": "four"}, "OMPI_COMM_WORLD_SIZE='four' is not a whole number"),
        ({**OPENMPI_5, "OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is not set though .* Open MPI"),
        ({**OPENMPI_5, "OMPI_COMM_WORLD_SIZE": "3"}, r"rank 3 must be between 0 and 2 \(size - 1\)"),
        ({**OPENMPI_5, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "local_rank 2 must be between 0 and 1"),
        ({**HYDRA, "MPI_LOCALNRANKS": "0"}, "local_size 0 must be between 1 and the size, 2"),
        ({**TORCHRUN, "WORLD_SIZE": "5"}, "torchrun started 5 ranks on 2 hosts, 2 of them on this one"),
        ({**TORCHRUN, "RANK": "7"}, "rank 7 must be between 0 and 3"),
        ({**SRUN, "SLURM_NODEID": "3"}, r"SLURM_NODEID=3 but .*='2\(x2\),1' has 3 hosts"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2x2"}, "'2x2' is not a list of counts"),
        ({**ENV_URL, "MASTER_ADDR": "nodeA"}, "set LOCAL_RANK and LOCAL_WORLD_SIZE"),
    ],
)
def test_variables_that_do_not_fit_are_refused_with_their_value(environ, message):
    with pytest.raises(UsageError, match=message):
        detect(environ).topology()


def test_env_url_takes_the_local_place_where_it_is_said():
    environ = {**ENV_URL, "MASTER_ADDR": "nodeA", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert detect(environ).topology() == Topology(1, 2, 0, 1, 1, 2, HERE)


# Three hosts with 2, 2 and 1 tasks: (rank, local rank, host) -> what Slurm does not say.
@pytest.mark.parametrize(
    ("rank", "local_rank", "host", "expected"),
    [
        (0, 0, 0, "rank 0(5), local 0(2), host 0(3) on node"),
        (1, 1, 0, "rank 1(5), local 1(2), host 0(2) on node"),
        (2, 0, 1, "rank 2(5), local 0(2), host 1(3) on node"),
        (3, 1, 1, "rank 3(5), local 1(2), host 1(2) on node"),
        (4, 0, 2, "rank 4(5), local 0(1), host 2(3) on node"),
    ],
)
def test_slurm_tells_exactly_who_shares_my_local_rank_on_uneven_hosts(rank, local_rank, host, expected):
    numbers = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank), "SLURM_NODEID": str(host)}
    assert repr(detect({**SRUN, **numbers, "SLURMD_NODENAME": "node"}).topology()) == expected


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("2(x2),1", [2, 2, 1]), ("1,3(x2)", [1, 3, 3])])
def test_slurms_task_counts_are_expanded_per_host(text, counts):
    assert ranks_per_host(text) == counts


def even_cross(*place):
    topology = even_topology(*place)
    return topology.cross_rank, topology.cross_size


def test_ranks_in_blocks_and_round_robin_are_placed_on_their_hosts():
    blocks = [even_cross(rank, 4, rank % 2, 2) for rank in range(4)]
    robin = [even_cross(rank, 4, rank // 2, 2) for rank in range(4)]
    assert blocks == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert robin == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_one_host_has_cross_rank_0_wherever_its_ranks_sit():
    assert even_cross(0, 4, 3, 4) == (0, 1)


def test_uneven_hosts_have_a_provisional_place_that_init_replaces():
    assert even_cross(0, 3, 0, 1) == (0, 3)  # the other host has two ranks
    assert even_cross(4, 6, 0, 3) == (1, 2)  # neither in blocks nor round robin
    for rank in range(7):
        for local_size in range(1, 8):
            cross_rank, cross_size = even_cross(rank, 7, min(rank, local_size - 1), local_size)
            assert 0 <= cross_rank < cross_size <= 7


def test_hydra_without_its_proxy_among_the_ancestors_is_refused():
    with pytest.raises(UsageError, match="is a Hydra proxy"):
        detect(HYDRA).job_name()


def test_hydras_proxy_is_found_above_a_shell(tmp_path):
    processes = [(31, 30, "python (v3) x", 500), (30, 20, "sh", 400), (20, 0, "hydra_pmi_proxy", 300)]
    for pid, parent, command, start in processes:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({command}) S {parent} " + "0 " * 17 + f"{start} 6238208 1\n")
    assert list(_ancestors(31, tmp_path)) == [(30, "sh", "400"), (20, "hydra_pmi_proxy", "300")]


def test_the_ancestors_of_this_process_begin_with_its_parent():
    assert next(_ancestors(os.getpid()))[0] == os.getppid()


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({**FLUX, "FLUX_JOB_SIZE": "5"}, "Flux started 5 ranks on 2 hosts, and does not tell .* --tasks-per-node"),
        ({**AZURE, "WORLD_SIZE": "9"}, "RANK=5, WORLD_SIZE=9 and LOCAL_RANK=1 do not fit host 1 of 2"),
        ({**AZURE, "NODE_RANK": "0"}, "RANK=5, WORLD_SIZE=8 and LOCAL_RANK=1 do not fit host 0 of 2"),
    ],
)
def test_numbers_that_do_not_tell_the_local_ranks_are_refused(environ, complaint):
    with pytest.raises(UsageError, match=complaint):
        detect(environ).topology()
