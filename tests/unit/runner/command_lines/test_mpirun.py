"""Command lines of Open MPI's, MPICH's and Intel MPI's mpirun become ours."""

import pytest

from distrun.errors import UsageError
from distrun.runner.command_lines.mpirun import PROGRAM
from distrun.runner.command_lines.translate import translate


def ours(line):
    translation = translate(PROGRAM, line.split())
    assert translation.options[:4] == ("--no-tag-output", "--stdin", "0", "--openmpi-env")
    return " ".join(translation.arguments[4:]), translation.description()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-n 2 cmd -n 3", "-np 2 cmd -n 3"),
        ("--np 2 cmd", "-np 2 cmd"),
        ("-c 2 cmd", "-np 2 cmd"),
        ("-np 4 -host a:2 --host b:2 cmd", "-np 4 --hosts a:2,b:2 cmd"),
        ("-n 4 -hosts a,b -ppn 2 cmd", "-np 4 --hosts a,b --ranks-per-host 2 cmd"),
        ("-N 2 --hostfile f cmd", "--ranks-per-host 2 --hostfile f cmd"),
        ("--npernode 2 -machinefile f cmd", "--ranks-per-host 2 --hostfile f cmd"),
        ("-f f -n 2 -l cmd", "--hostfile f -np 2 --tag-output cmd"),
        ("-n 2 --oversubscribe --allow-run-as-root cmd", "-np 2 --oversubscribe cmd"),
        ("-host a cmd", "--hosts a --slots 1 cmd"),
        ("-host a,a cmd", "--hosts a,a --slots 1 cmd"),
        ("-x A=1 -x B -genv C 2 -env D=3=4 cmd", "-x A=1 -x B -x C=2 -x D=3=4 cmd"),
        ("-genvlist A,B -genvall cmd", "-x A -x B -x * cmd"),
        ("-wdir /d --tag-output --timestamp-output cmd", "--wdir /d --tag-output --prefix-output-with-timestamp cmd"),
        ("-prepend-rank -output-filename o cmd", "--tag-output --output-dir o cmd"),
        ("--output tag,timestamp,dir=o cmd", "--tag-output --prefix-output-with-timestamp --output-dir o cmd"),
        (
            "--stdin none -q --timeout 60 --report-bindings cmd",
            "--stdin none --quiet --timeout 60 --report-bindings cmd",
        ),
        ("--map-by slot cmd", "cmd"),
        ("--map-by node cmd", "--map-by node cmd"),
        ("--map-by ppr:2:node cmd", "--ranks-per-host 2 cmd"),
        ("--map-by node:OVERSUBSCRIBE cmd", "--oversubscribe --map-by node cmd"),
        ("--map-by socket:PE=4 cmd", "--bind-to core cmd"),
        ("--bind-to core:overload-allowed cmd", "--bind-to core cmd"),
        ("-bind-to none -rr cmd", "--bind-to none --map-by node cmd"),
        ("--mca btl_tcp_if_include eth0 cmd", "--network eth0 cmd"),
        ("-bootstrap slurm cmd", "--launcher srun cmd"),
        ("-bootstrap fork cmd", "cmd"),
        ("-V", "--version"),
    ],
)
def test_flags_become_ours(line, expected):
    assert ours(line) == (expected, "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--mca pml ob1 -mca btl ^openib", "ignored: --mca pml ob1, -mca btl ^openib (they tune the libraries"),
        ("--prefix /opt/openmpi", "the MPI that is installed is not used"),
        ("--display-map --display allocation", "--dry-run prints the plan"),
        ("--map-by core --rank-by slot", "numbered one after the other"),
    ],
)
def test_what_only_tunes_an_mpi_is_ignored_with_the_reason(line, why):
    text, ignored = ours(f"{line} cmd")
    assert text == "cmd"
    assert why in ignored


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("-n 1 a : -n 2 b", "starts several programs: one job runs one program"),
        ("-configfile f", "mpirun -configfile f: one job runs one program"),
        ("--map-by ppr:2:socket cmd", "only ppr:N:node is understood: give --ranks-per-host N"),
        ("--map-by moon cmd", "mpirun --map-by moon: allowed are slot, node and ppr:N:node"),
        ("-ppn", "mpirun -ppn lacks a value: give -ppn N"),
        ("--bind-to hwthread cmd", "'hwthread' is not understood: allowed are none, core, socket, numa"),
        ("--mca plm_rsh_args -p22 cmd", "--ssh-port"),
        ("-genvnone cmd", "env -i"),
        ("-outfile-pattern x cmd", "give --output-dir DIR"),
        ("-foo cmd", "mpirun -foo is not understood: see distrun-compat mpirun --help"),
    ],
)
def test_what_would_make_another_job_is_refused(line, sentence):
    with pytest.raises(UsageError) as error:
        ours(line)
    assert sentence in str(error.value)
