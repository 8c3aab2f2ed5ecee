"""Flags of other launchers are understood on our own command line, where only one is meant; and options of ours."""

import pytest

from distrun.cli import distrun
from distrun.errors import UsageError
from distrun.runner.command_lines.borrowed import translated
from distrun.runner.command_lines.own_options import are_all_own, own_options, with_value
from distrun.tools.doctor.command import doctor

OWN = own_options(distrun)


def ours(line):
    return " ".join(translated(OWN, line.split()).arguments)


@pytest.mark.parametrize(
    "line",
    ["-np 2 -H a:1,b:1 -x A=b -x 'N_*' --wdir d cmd -ppn 2", "--hosts=a -- -cmd", "--help", "cmd", "", "-np", "- x"],
)
def test_our_own_options_stay_as_they_are(line):
    assert are_all_own(OWN, line.split())  # no table is read then
    assert ours(line) == line


@pytest.mark.parametrize("line", ["-p22 -i key -vq -np 2 cmd", "-vp 22 -Ha cmd", "-xA=1 cmd"])
def test_short_options_may_share_a_word(line):
    assert ours(line) == line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-host h1:1 -ppn 2 cmd", "--hosts h1:1 --ranks-per-host 2 cmd"),
        ("-n 2 -hosts a --host b cmd", "-np 2 --hosts a,b cmd"),
        ("-v -f hosts -genv A 1 cmd", "-v --hostfile hosts -x A=1 cmd"),
        ("--output-filename o --stall-check-warning-time-seconds 3 cmd", "--output-dir o --stall-warning 3 cmd"),
        ("--mpi --map-by node cmd", "--launcher mpirun --map-by node cmd"),
        ("--map-by ppr:2:node --bind-to=core:overload-allowed cmd", "--ranks-per-host 2 --bind-to core cmd"),
        ("-np 2 --wire-dtype=x cmd -host a", "-np 2 --wire-dtype=x cmd -host a"),
        ("--min-num-proc 2 --host-discovery-script x cmd", "--min-np 2 --hosts-from x cmd"),
        ("-map-by ppr:2:node -wd d cmd", "--ranks-per-host 2 --wdir d cmd"),
    ],
)
def test_flags_of_others_become_ours(line, expected):
    assert ours(line) == expected


def test_the_doctor_has_fewer_options():
    own = own_options(doctor)
    assert translated(own, ["-hosts", "a", "-wd", "d"], "distrun doctor").arguments == ["--hosts", "a", "--wdir", "d"]
    with pytest.raises(UsageError, match="there is no option -ppn: see distrun doctor --help"):
        translated(own, ["-ppn", "2"], "distrun doctor")
    with pytest.raises(UsageError, match="no option --bind-to: only launches have it, and distrun doctor does not"):
        translated(own, ["--bind-to", "core"], "distrun doctor")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--standalone cmd", "leave out this one of torchrun's, as a job on one host needs no rendezvous"),
        ("--rdzv_backend c10d cmd", "'distrun-compat torchrun ...' understands it as torchrun's"),
        ("--max-restart 3 cmd", "there is no option --max-restart: did you mean --max-restarts?"),
        ("--redirects 3 cmd", "there is no option --redirects: did you mean --redirect STREAMS?"),
        ("-m train", "there is no option -m: did you mean python -m MODULE?"),
        ("--nproc_per_node 2 cmd", "there is no option --nproc_per_node: did you mean --nproc-per-node?"),
        ("--log-dir x cmd", "there is no option --log-dir: did you mean --output-dir DIR?"),
        ("--log_dir=x cmd", "there is no option --log_dir: did you mean --output-dir DIR?"),
        ("--gpus 0,1 cmd", "there is no option --gpus: did you mean -H 'localhost:[0,1]'?"),
        ("--num_processes 2 cmd", "there is no option --num_processes: did you mean -np N?"),
        ("--master_addr a cmd", "there is no option --master_addr: did you mean --rdzv-endpoint HOST:29500?"),
        ("-port 22 cmd", "there is no option -port: see distrun --help"),
        ("-identity key cmd", "there is no option -identity: see distrun --help"),
        ("--autotun cmd", "there is no option --autotun: did you mean --autotune?"),
        ("--stal-warning 3 cmd", "there is no option --stal-warning: did you mean --stall-warning?"),
        ("--qqq", "there is no option --qqq: see distrun --help"),
    ],
)
def test_what_is_nobodys_is_refused_without_a_wrong_guess(line, sentence):
    with pytest.raises(UsageError) as error:
        ours(line)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--auto python x.py --auto", "--auto=global python x.py --auto"),
        ("-np 2 --auto -H a:2 python x.py", "-np 2 --auto=global -H a:2 python x.py"),
        ("--auto=scale -np 2 python x.py --auto", "--auto=scale -np 2 python x.py --auto"),
        ("--wdir --auto x", "--wdir --auto x"),
    ],
)
def test_an_option_that_stands_alone_gets_its_value(line, expected):
    assert " ".join(with_value(OWN, line.split(), "--auto", "global")) == expected
