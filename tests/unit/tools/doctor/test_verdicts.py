"""The doctor's judgement of what was found."""

from dataclasses import replace

import pytest

from distrun.runner.protocol.handshake import explain_failed_start
from distrun.tools.doctor import verdicts
from distrun.tools.doctor.gpus import Gpus
from distrun.tools.doctor.machine_facts import MachineFacts
from distrun.tools.doctor.report import Status

GIB = 1 << 30
MACHINE = MachineFacts(8, 64 * GIB, 60 * GIB, 32 * GIB, None, [["eth0", "10.0.0.1", 24]], {"torch": "2.13.0"})
GPUS = Gpus(
    *(["NVIDIA H100"] * 2, [80 * GIB] * 2, "550.54.15", "2.21.5", [[True, True], [True, True]]),
    cuda=12040,
    cupy="cupy-cuda12x",
)


@pytest.mark.parametrize(
    ("offset", "round_trip", "status"),
    [
        (0.0, 0.001, Status.OK),
        (1.0, 0.0, Status.OK),
        (-1.01, 0.0, Status.WARNING),
        (1.4, 1.0, Status.OK),  # perhaps it is 0.9 s
        (1.6, 1.0, Status.WARNING),
    ],
)
def test_a_clock_may_differ_by_a_second_and_what_the_question_took(offset, round_trip, status):
    step = verdicts.clock(offset, round_trip)
    assert step.status is status
    assert ("ahead" in step.text) == (offset > 0)
    assert bool(step.remedy) == (status is Status.WARNING)


def test_a_good_machine():
    step = verdicts.machine(MACHINE)
    assert (step.status, step.text) == (Status.OK, "8 cores, 64 GiB of memory (60 GiB free), /dev/shm 32 GiB")


@pytest.mark.parametrize(
    ("change", "text", "remedy"),
    [
        ({"shm": 64 << 20}, "/dev/shm 64 MiB: data loaders and NCCL need more", "--shm-size"),
        ({"shm": None}, "no /dev/shm", "--shm-size"),
        ({"address_space": 4 * GIB}, "limited to 4.0 GiB", "ulimit -v unlimited"),
    ],
)
def test_limits_are_warnings(change, text, remedy):
    step = verdicts.machine(replace(MACHINE, **change))
    assert step.status is Status.WARNING
    assert text in step.text
    assert remedy in step.remedy


def test_names_of_one_machine_are_found_and_unknown_machines_are_not():
    hosts = [("a", "m1"), ("b", "m2"), ("c", "m1"), ("d", ""), ("e", ""), ("f", "m1")]
    assert verdicts.twins(hosts) == {"c": "a", "f": "a"}


def test_no_gpu_is_a_warning_if_gpus_were_to_be_checked():
    step = verdicts.no_gpu()
    assert step.status is Status.WARNING
    assert "--gpu has nothing to check" in step.text
    assert "docker run --gpus all" in step.remedy


def test_no_gpu_is_fine_and_good_ones_are_described():
    assert verdicts.gpus(Gpus()).text == "none"
    step = verdicts.gpus(GPUS)
    assert step.status is Status.OK
    assert step.text == (
        "2 x NVIDIA H100 (80 GiB each), driver 550.54.15 for CUDA 12.4, NCCL 2.21.5, all can access each other's "
        "memory (P2P)"
    )


def test_an_iommu_between_gpus_is_a_warning_and_none_beside_a_single_one():
    step = verdicts.gpus(replace(GPUS, iommu=["0000:18:00.0"]))
    assert step.status is Status.WARNING
    assert "IOMMU" in step.text
    assert "iommu=pt" in step.remedy
    single = replace(GPUS, names=["X"], memory=[], peers=[[True]], iommu=["0000:18:00.0"])
    assert verdicts.gpus(single).status is Status.OK


def test_partial_access_is_shown_as_a_matrix():
    able = [[True, True, False], [True, True, False], [False, False, True]]
    step = verdicts.gpus(replace(GPUS, names=["A"] * 3, memory=[], peers=able))
    assert "2 of 6 pairs have P2P" in step.text
    assert step.text.splitlines()[1:] == ["P2P  0  1  2", "  0  x  x  -", "  1  x  x  -", "  2  -  -  x"]
    assert verdicts.gpus(replace(GPUS, peers=[[True, False], [False, True]])).text.endswith("no P2P)")


def test_gpus_that_cannot_be_used_are_a_failure_and_a_missing_nccl_is_a_warning():
    step = verdicts.gpus(Gpus(problem="2 NVIDIA device(s), and no driver is loaded"))
    assert step.status is Status.FAILED
    assert "driver" in step.remedy
    assert verdicts.gpus(replace(GPUS, nccl="")).status is Status.WARNING


@pytest.mark.parametrize(
    ("change", "text", "remedy"),
    [
        ({"cupy": ""}, "cupy cannot be found, which", "pip install 'distrun[cuda12]'"),
        ({"cupy": "", "cuda": 13000}, "cupy cannot be found, which", "pip install 'distrun[cuda13]'"),
        ({"cupy": "", "nccl": ""}, "cupy and NCCL cannot be found", "pip install 'distrun[cuda12]'"),
        (
            {"cupy": "", "cuda": 0},
            "cupy",
            "pip install 'distrun[cuda12]' or 'distrun[cuda13]', as the driver's CUDA is",
        ),
        ({"cupy": "", "cuda": 11080}, "cupy", "update the driver, which is for CUDA 11.8: cupy needs one for CUDA 12"),
        (
            {"cupy": "cupy-cuda13x"},
            "cupy-cuda13x does not work with this driver, which is for CUDA 12.4",
            "update the driver, or pip uninstall cupy-cuda13x and pip install 'distrun[cuda12]'",
        ),
    ],
)
def test_gpus_without_a_cupy_that_works_are_a_warning_with_what_to_install(change, text, remedy):
    step = verdicts.gpus(replace(GPUS, **change))
    assert step.status is Status.WARNING
    assert text in step.text
    assert step.remedy == remedy


def test_packages_that_differ_between_hosts_are_noted():
    other = replace(MACHINE, packages={"torch": "2.12.0", "jax": "0.10.0"})
    assert verdicts.differences({"a": MACHINE, "b": MACHINE}) == []
    assert verdicts.differences({"a": MACHINE, "b": other, "c": MACHINE}) == [
        "torch differs between hosts: 2.13.0 on a, c; 2.12.0 on b",
        "jax differs between hosts: none on a, c; 0.10.0 on b",
    ]


@pytest.mark.parametrize(
    ("sentence", "reason", "remedy"),
    [
        ("the name 'x' is not found; correct it, or so", "the name 'x' is not found", "correct it, or so"),
        ("it is so", "it is so", ""),
        ("the agent did not start (exit code 1): a; b", "the agent did not start (exit code 1): a; b", ""),
        ("no; give a key; give two", "no", "give a key; give two"),
    ],
)
def test_a_sentence_is_split_where_the_remedy_begins(sentence, reason, remedy):
    assert verdicts.split_remedy(sentence) == (reason, remedy)


def test_the_sentences_of_a_python_that_does_not_start_are_split():
    for status, output in (
        (127, "sh: not found; really"),
        (1, "No module named 'distrun'"),
        (1, "distrun needs Python"),
    ):
        assert verdicts.split_remedy(explain_failed_start(status, output, "python"))[1], (status, output)


def test_software_is_told():
    assert verdicts.software(MACHINE).text == "torch 2.13.0, no mpirun, no srun"
    step = verdicts.software(
        replace(MACHINE, mpi="mpirun (Open MPI) 5.0.11", slurm="slurm 22.05.8", kernels="kernels in C (avx2)")
    )
    assert step.text == "torch 2.13.0, MPI: mpirun (Open MPI) 5.0.11, Slurm: slurm 22.05.8, kernels in C (avx2)"
