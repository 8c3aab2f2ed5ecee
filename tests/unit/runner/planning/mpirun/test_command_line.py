"""The command lines of each mpirun, and how one is known."""

from dataclasses import replace

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.mpirun.command_line import MpirunOptions, command_line
from distrun.runner.planning.mpirun.program import MpiImplementation as Mpi, identify

HERE = MpirunOptions(["python", "train.py"], [("localhost", 4)], "/work", is_local=True)
THERE = MpirunOptions(
    *(["python", "a b.py"], [("a", 2), ("b", 1)], "/w d", ["FOO", "PATH"]),
    address="10.0.0.1",
    as_root=True,
    extra=["--more", "x y"],
)


def text(mpi, options=THERE, **changes):
    return command_line(mpi, replace(options, **changes))


def test_open_mpi_5():
    assert text(Mpi.OPENMPI_5, ssh=["-p", "22"], network="eth1", output_dir="/out") == [
        *("mpirun", "-np", "3", "--host", "a:2,b:1", "--map-by", "slot", "--bind-to", "none", "--wdir", "/w d"),
        *("--output", "dir=/out", "--allow-run-as-root", "--mca", "btl_tcp_if_include", "eth1"),
        *("--prtemca", "plm_ssh_args", "-p 22", "-x", "FOO", "-x", "PATH", "--more", "x y", "python", "a b.py"),
    ]
    assert text(Mpi.OPENMPI_5, HERE) == [
        *("mpirun", "-np", "4", "--host", "localhost:4", "--map-by", "slot", "--bind-to", "none", "--wdir", "/work"),
        *("--output", "tag", "python", "train.py"),
    ]


def test_open_mpi_4():
    assert text(Mpi.OPENMPI_4, ssh=["-p", "22"], network="eth1", output_dir="/out") == [
        *("mpirun", "-np", "3", "--host", "a:2,b:1", "--map-by", "slot", "--bind-to", "none", "--wdir", "/w d"),
        *("--tag-output", "--output-filename", "/out", "--allow-run-as-root", "--mca", "btl_tcp_if_include", "eth1"),
        *("--mca", "plm_rsh_args", "-p 22", "-x", "FOO", "-x", "PATH", "--more", "x y", "python", "a b.py"),
    ]


def test_open_mpi_notices_that_a_host_is_gone_before_the_ranks_do():
    words = text(Mpi.OPENMPI_5, keepalive=15.0)
    assert [words[index + 1 : index + 3] for index, word in enumerate(words) if word == "--prtemca"] == [
        *(["oob_tcp_keepalive_time", "1"], ["oob_tcp_keepalive_intvl", "1"], ["oob_tcp_keepalive_probes", "10"])
    ]
    assert "oob_tcp_keepalive_time" in text(Mpi.OPENMPI_4, keepalive=15.0)
    assert "oob_tcp_keepalive_time" not in text(Mpi.OPENMPI_5, HERE, keepalive=15.0)


def test_mpich():
    assert text(Mpi.MPICH, network="eth1") == [
        *("mpirun", "-n", "3", "-hosts", "a:2,b:1", "-localhost", "10.0.0.1", "-wdir", "/w d", "-prepend-rank"),
        *("-genvlist", "FOO,PATH", "-bind-to", "none", "--more", "x y", "python", "a b.py"),
    ]
    assert text(Mpi.MPICH, HERE) == [
        *("mpirun", "-n", "4", "-wdir", "/work", "-prepend-rank", "-bind-to", "none", "python", "train.py")
    ]


def test_intel_mpi():
    assert text(Mpi.INTEL, ssh=["-p", "22"]) == [
        *("mpirun", "-wdir", "/w d", "-prepend-rank", "-genvlist", "FOO,PATH", "-genv", "I_MPI_PIN", "off"),
        *("-localhost", "10.0.0.1", "-bootstrap", "ssh", "-bootstrap-exec-args", "-p 22", "--more", "x y"),
        *("-host", "a", "-n", "2", "python", "a b.py", ":", "-host", "b", "-n", "1", "python", "a b.py"),
    ]
    assert text(Mpi.INTEL, HERE, tags=False) == [
        *("mpirun", "-wdir", "/work", "-genv", "I_MPI_PIN", "off", "-n", "4", "python", "train.py")
    ]


def test_each_mpirun_binds_ranks_in_its_own_words():
    def said(mpi):
        return " ".join(text(mpi, HERE, bind_to="socket"))

    assert "--bind-to socket" in said(Mpi.OPENMPI_5)
    assert "-bind-to socket" in said(Mpi.MPICH)
    assert "-genv I_MPI_PIN_DOMAIN socket" in said(Mpi.INTEL)
    assert "--report-bindings" in text(Mpi.OPENMPI_4, report_bindings=True)


@pytest.mark.parametrize(
    ("mpi", "changes", "words"),
    [
        (
            Mpi.MPICH,
            {"ssh": ["-p", "22"]},
            "MPICH's mpirun passes no options to ssh (-p 22): write them into ~/.ssh/config",
        ),
        (Mpi.MPICH, {"report_bindings": True}, "--report-bindings is more than MPICH's mpirun can do"),
        (Mpi.MPICH, {"output_dir": "/out"}, "--output-dir '/out' is more than MPICH's mpirun can do"),
        (Mpi.INTEL, {"output_dir": "/out"}, "--output-dir '/out' is more than Intel MPI's mpirun can do"),
    ],
)
def test_what_an_mpirun_cannot_be_told_is_refused(mpi, changes, words):
    with pytest.raises(UsageError) as caught:
        text(mpi, **changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("version", "mpi"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n", Mpi.OPENMPI_5),
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", Mpi.OPENMPI_4),
        ("mpirun (Open MPI) 10.0.0rc1\n", Mpi.OPENMPI_5),
        ("HYDRA build details:\n    Version:   4.3.0\n", Mpi.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121 (id: e7829d6)\n", Mpi.INTEL),
    ],
)
def test_an_mpirun_is_known_by_its_version(version, mpi):
    assert identify(version) is mpi


def test_a_strange_mpirun_is_an_error():
    with pytest.raises(UsageError, match=r"says 'fork 1\.0': understood are Open MPI, MPICH and Intel MPI"):
        identify("fork 1.0\nmore\n")
