"""Command lines of `distrun` that start nothing: each costs one sentence with the value that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from distrun.cli import main
from distrun.errors import UsageError
from distrun.runner.launch.function import run
from distrun.runner.planning import checks
from distrun.runner.system import machine

PYTHON = (sys.executable, "-c", "pass")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that returns the exit status of a command line, and its only sentence."""

    def status_and_sentence(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown, said = capsys.readouterr()
        assert shown == ""
        assert said.count("\n") == 1
        assert said.startswith("distrun: error: ")
        return ended.value.code, said.removeprefix("distrun: error: ").rstrip("\n")

    return status_and_sentence


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["-np", "0", "true"], "-np 0"),
        (["-np", "x", "true"], "'x'"),
        (["-np", "2", "-H", "localhost:1", "true"], "-np 2 asks for more ranks than the 1 slot of localhost:1:"),
        (["-np", "3", "-H", "localhost:2", "true"], "-np 3 asks for more ranks than the 2 slots of localhost:2"),
        (["-H", "a_%b", "true"], "'a_%b'"),
        (["-H", "localhost:0", "true"], "'localhost:0'"),
        (["-H", "a:[x y]", "true"], "names 'x y' as GPUs"),
        (["-np", "3", "-H", "localhost:3[0,1]", "true"], "3 ranks on localhost are more than its 2 GPUs 0,1"),
        (["-np", "99999999999", "true"], "-np 99999999999"),
        (["-np", "99999999999", "--oversubscribe", "-H", "localhost:1", "true"], "-np 99999999999"),
        (["-np", "2", "-H", "localhost:99999999999", "true"], "'99999999999' slots"),
        (["--slots", "99999999999", "true"], "99999999999"),
        (["--ranks-per-host", "99999999999", "true"], "99999999999"),
        (["--servers", "99999999999", "true"], "99999999999"),
        (["-np", "99999999999", "--elastic", "true"], "-np 99999999999"),
        (["-np", "99999999999", "--hosts-from", "true", "true"], "-np 99999999999"),
        (["-np", "1", "--min-np", "99999999999", "true"], "99999999999"),
        (["-np", "1", "--max-np", "99999999999", "true"], "99999999999"),
        (["-np", "1", "--spares", "99999999999", "true"], "99999999999"),
        (["-np", "99999999999", "--launcher", "mpirun", "true"], "-np 99999999999"),
        (["--nnodes", "99999999999", "--rdzv-endpoint", "localhost:1", "true"], "--nnodes 99999999999"),
        (["--nnodes", "2", "--nproc-per-node", "9" * 5000, "true"], "--nproc-per-node 999"),
        (["--metrics", f":{'9' * 5000}", "true"], "is not an address"),
        (["--ports", f"1-{'9' * 5000}", "true"], "is no range of ports"),
        (["--stdin", "9" * 5000, "true"], "--stdin '999"),
        (["-p", "0", "true"], "0"),
        (["-H", "192.0.2.1", "--ssh-option", "Cipher=x", "true"], "'Cipher=x'"),
        (["-H", "localhost", "--hostfile", "x", "true"], "exclude each other"),
        (["--hostfile", "/no/such/file", "true"], "'/no/such/file'"),
        (["--hostfile", "/dev/null", "true"], "names no host"),
        ([], "no command"),
        (["-np", "2"], "no command"),
        (["-x", "=3", "true"], "'=3'"),
        (["--wdir", "/no/such/dir", "true"], "'/no/such/dir'"),
        (["-np", "2", "--rank-filter", "0,7", "true"], "'7'"),
        (["-np", "2", "--stdin", "2", "true"], "--stdin 2"),
        (["--stdin", "all", "true"], "'all'"),
        (["--grace", "-1", "true"], "'-1'"),
        (["--stall-timeout", "nan", "true"], "'nan'"),
        (["--mpi-args", "-x A", "true"], "--mpi-args '-x A' needs --launcher mpirun"),
        (["--autotune-log-file", "f", "true"], "--autotune-log-file f says how to tune, and nothing is tuned"),
        (["--autotune-allow-wire-dtype", "float16", "true"], "--autotune-allow-wire-dtype float16 says how"),
        (["--autotune", "--autotune-allow-wire-dtype", "int8", "true"], "'int8'"),
        (["--output-dir", "/dev/null/x", "true"], "'/dev/null/x'"),
        (["--output-dir", "a" * 300, "true"], "cannot be written: File name too long; give a directory"),
        (["--timeline", "/none/t.json", "true"], "--timeline '/none/t.json': there is no folder '/none': make it"),
        (["--timeline", "/", "true"], "--timeline '/' is a folder"),
        (["--timeline", "", "true"], "--timeline '' is no file"),
        (["--timeline", "t", "--timeline-steps", "9:1", "true"], "--timeline-steps '9:1' is no range of steps"),
        (["--timeline", "t", "--timeline-limit", "x", "true"], "--timeline-limit 'x' is no number of megabytes"),
        (["--report", "/no/such/report.html", "true"], "there is no directory /no/such"),
        (["--report", "/", "true"], "is a directory: give the name of a file"),
        (["--report", "a" * 300, "true"], "cannot be written to (File name too long): give a file in another"),
        (["--report", "/proc/x.html", "true"], "--report /proc/x.html: /proc cannot be written to (No such file or"),
        (["--timeline-steps", "3:5", "true"], "--timeline-steps 3:5 is about the timeline, and none is written: give"),
        (["--timeline-limit", "9", "true"], "--timeline-limit 9 is about the timeline, and none is written: give"),
        (["--timeline-operations", "true"], "--timeline-operations is about the timeline, and none is written: give"),
        (["--ship-limit", "lots", "true"], "--ship-limit lots limits what --ship brings, and nothing is shipped: give"),
        (["-i", "/nosuch/key", "true"], "-i '/nosuch/key' is not a file: give the private key"),
        (["doctor", "-i", "/nosuch/key"], "-i '/nosuch/key' is not a file: give the private key"),
        (["--auto", "global", "-np", "2", "python", "x.py"], "--auto global is not understood: write --auto=global"),
        (["--server-restarts", "2", "true"], "--server-restarts 2 restarts servers, and there are none"),
        (["--server-hosts", "a", "true"], "is for parameter servers, and there are none: give --servers N too"),
        (["--servers", "1", "--server-hosts", "a,b", "true"], "names 2 hosts for --servers 1: give as many servers"),
        (["--servers", "2", "--server-hosts", "a:2", "true"], "gives slots, which servers do not need: give names"),
        (
            ["--servers", "2", "--server-checkpoint", "copies", "true"],
            "is for servers that are restarted: give --servers N and --server-restarts N too",
        ),
        (
            ["--servers", "2", "--server-restarts", "1", "--server-checkpoint", "copies:often", "true"],
            "'copies:often' is not understood: allowed are a folder, and a folder with the seconds between copies",
        ),
        (["--servers", "2", "--elastic", "true"], "--servers 2 does not go with elastic jobs: leave out --elastic and"),
        (
            ["--servers", "2", "--nnodes", "2", "--rdzv-endpoint", "localhost:1", "true"],
            "--servers 2 does not go with --nnodes 2: start one launcher for all hosts, with -H",
        ),
        (["--servers", "2", "--launcher", "mpirun", "true"], "--servers 2 does not go with --launcher mpirun: leave"),
        (["doctor", "-H", "a:x"], "'a:x' gives 'x' slots"),
        (["doctor", "-H", "a", "--hostfile", "b"], "exclude each other"),
        (["doctor", "--network", "a/b"], "neither an interface nor a subnet"),
        (["doctor", "--start-timeout", "0"], "start-timeout"),
        (["top"], "distrun top needs a terminal: without one, start the job with --live, which writes lines"),
        (["agent", "true"], "nobody says how many hosts the job has"),
        (["--launcher", "docker", "true"], "'--launcher': 'docker' is not one of 'ssh', 'srun', 'mpirun'"),
        (["--bind-to", "cpu", "true"], "'--bind-to': 'cpu' is not one of 'none', 'core', 'socket', 'numa'"),
        (["-rank-by", "cpu", "true"], "distrun -rank-by cpu: 'cpu' is not understood: allowed are"),
        (["k8s", "-np", "3", "--hosts", "2", "--image", "x", "true"], "-np 3 ranks do not go with --hosts 2: give"),
        (["k8s", "-np", "2", "--slots", "1", "--image", "x", "true"], "-np 2 ranks do not go with --hosts 1 and --slo"),
        (["predict", "/nowhere"], "there is no file /nowhere"),
    ],
)
def test_bad_input_costs_one_sentence_with_the_value_and_status_2(refused, arguments, value):
    status, sentence = refused(*arguments)
    assert status == 2
    assert value in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stal-warning", "2", "true"], "there is no option --stal-warning: did you mean --stall-warning?"),
        (["--qqq"], "there is no option --qqq: see distrun --help"),
        (["doctor", "--hots", "a"], "there is no option --hots: did you mean --hosts?"),
        (["doctor", "--nonsense"], "there is no option --nonsense: see distrun doctor --help"),
        (["doctor", "more"], "Got unexpected extra argument (more); see distrun doctor --help"),
        (["doctor", "--gpus", "0"], "there is no option --gpus: did you mean -H 'localhost:[0,1]'?"),
        (["sweep", "--trails", "2"], "there is no option --trails: did you mean --trials?"),
        (
            ["sweep", "--param", "lr=0.1"],
            "there is no option --param: a parameter is a word of its own, as in lr=log:1e-4..1e-1",
        ),
        (["top", "--nonsense"], "there is no option --nonsense: see distrun top --help"),
    ],
)
def test_a_misspelt_command_line_is_answered_with_what_was_probably_meant(refused, arguments, sentence):
    assert refused(*arguments) == (2, sentence)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-np", "2", "--min-np", "3"], "-np 2 is not between --min-np 3 and --max-np 2"),
        (["-np", "4", "--max-np", "3"], "-np 4 is not between --min-np 4 and --max-np 3"),
        (["-np", "3", "-H", "localhost:2", "--elastic"], "-np 3 asks for more ranks than the 2 slots of localhost:2"),
        (["--elastic", "--launcher", "mpirun"], "--launcher mpirun does not go with an elastic job"),
        (["--elastic", "--tf-config", "--ps", "1"], "--ps 1 does not go with an elastic job"),
        (["--elastic", "--stdin", "0"], "--stdin 0 does not go with an elastic job"),
        (["--elastic", "--map-by", "node"], "--map-by node does not go with an elastic job"),
        (["--elastic", "-x", "DISTRUN_BACKEND=mpi"], "DISTRUN_BACKEND='mpi' does not go with an elastic job"),
        (["--elastic", "--nnodes", "2", "--rdzv-endpoint", "a"], "--nnodes 2 starts a launcher on each node"),
        (["--hosts-from", "x", "-H", "a"], "--hosts-from 'x' and the hosts a exclude each other"),
        (["--hosts-from", "x"], "--hosts-from 'x' does not say how many ranks to start with"),
        (["--hosts-from", "./none", "-np", "1"], "--hosts-from './none' cannot be executed"),
        (["--cooldown", "20,10"], "--cooldown '20,10' is no pair of seconds that rise"),
        (["--min-np", "0"], "'--min-np'"),
    ],
)
def test_options_that_do_not_go_with_an_elastic_job_are_refused(refused, options, words):
    status, sentence = refused(*options, *PYTHON)
    assert status == 2
    assert words in sentence


def test_horovods_variable_is_read_in_its_mode(refused, monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "soon")
    status, sentence = refused("--horovod", "--min-np", "1", *PYTHON)
    assert status == 2
    assert "HOROVOD_ELASTIC_TIMEOUT='soon' is no number of seconds >= 1" in sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no command to try"),
        (("true", "x=2..1"), "2 is not below 1"),
        (("--seeds", "2", "true", "x=1..2"), "--seeds 2 repeats trials"),
        (("--grid", "true", "x=0.1..2"), "--grid cannot list"),
        (("-np", "3", "-H", "localhost:2", "true", "x=1..2"), "-np 3 asks for more ranks per trial than the 2 slots"),
        (("no-such-program", "x=1..2"), "not found"),
        (("--resume", "/nowhere"), "no sweep that can be resumed"),
        (("--trials", "3", "true"), "--trials 3 has no effect"),
        (("--spares", "1", "--grid", "true", "x=1..2"), "--spares 1 needs a Python program"),
    ],
)
def test_a_sweep_that_cannot_be_leaves_no_folder(refused, tmp_path, arguments, said):
    output = () if "--resume" in arguments else ("--output", str(tmp_path / "results"))
    status, sentence = refused("sweep", *output, *arguments)
    assert status == (127 if "no-such-program" in arguments else 2)
    assert said in sentence
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("options", [("-np", "2"), ("--nnodes", "2", "--rdzv-endpoint", "localhost:1")])
def test_a_command_that_does_not_exist_has_the_status_of_a_shell(refused, options):
    status, sentence = refused(*options, "no-such-command")
    assert status == 127
    assert "command 'no-such-command' not found" in sentence


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("docter", "distrun doctor"),
        ("tops", "distrun top"),
        ("sweepe", "distrun sweep"),
        ("predit", "distrun predict"),
        ("version", "distrun --version"),
        ("run", "distrun -np 2 python train.py"),
        ("pyton", "python"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_one_that_was_probably_meant(refused, monkeypatch, word, meant):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert refused(word, "train.py") == (127, f"command {word!r} not found: did you mean '{meant}'?")


def test_what_is_no_program_has_the_status_of_a_shell(refused, tmp_path):
    status, sentence = refused("-np", "2", str(tmp_path))
    assert status == 126
    assert f"command '{tmp_path}' is a directory" in sentence
    for command in ("a" * 300, f"./{'a' * 300}"):
        assert refused(command) == (127, f"command '{command}' not found: give a program on PATH, or the path of one")
    (tmp_path / "train.sh").touch()
    status, sentence = refused("--wdir", str(tmp_path), "./train.sh")
    assert status == 126
    assert "try 'chmod +x ./train.sh'" in sentence


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python"], "'python' reads its program from standard input, which ranks do not get: give a script, as in"),
        (["python3", "-u", "-X", "dev", "-"], "'python3 -u -X dev -' reads its program from standard input"),
        (["-H", "192.0.2.1", "python", "-"], "'python -' reads its program from standard input"),
        (["--elastic", "python"], "'python' reads its program from standard input"),
        (["python", "missing.py"], "there is no script 'missing.py' in "),
        (["--auto", "python", "-u", "missing.py"], "there is no script 'missing.py' in "),
        (["--elastic", "python", "missing.py"], "there is no script 'missing.py' in "),
        (["python", "folder"], "'folder' is a directory without a __main__.py: give the script to run in it"),
    ],
)
def test_a_python_without_a_script_is_refused_before_ranks_start(refused, tmp_path, monkeypatch, command, words):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    status, sentence = refused("-np", "1", *command)
    assert status == 2
    assert words in sentence


def test_a_python_with_a_program_or_the_input_of_the_launcher_is_not_refused(shown, tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").touch()
    monkeypatch.chdir(tmp_path)
    started = (["package"], ["-m", "missing"], ["-c", ""], ["-V"], ["--help"], ["-i"], ["-um", "missing"])
    for words in (["-np", "1", "--stdin", "0", "python", "-"], *(["-np", "1", "python", *rest] for rest in started)):
        assert "rank 0" in shown("--dry-run", *words)
    assert "rank 0" in shown("--dry-run", "-H", "192.0.2.1", "python", "missing.py")


def test_a_working_directory_that_is_gone_is_refused(refused, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, sentence = refused("-np", "2", "true")
    assert status == 2
    assert sentence == "the working directory has been deleted: change to one that exists, as in cd ~"


def test_options_of_ours_after_a_script_that_does_not_know_them_get_a_note(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("parser.add_argument('--dry-run'); FLAGS.output_dir")
    monkeypatch.chdir(tmp_path)

    def said(*options):
        with pytest.raises(SystemExit) as ended:
            main([*options, "--dry-run", "python", "train.py", "--dry-run", "--output-dir=x", "--help", "--live", "-x"])
        assert ended.value.code == 0
        return capsys.readouterr().err

    assert said() == "distrun: --live stands after the command, which gets it; options of distrun come before\n"
    assert said("-q") == ""


def test_a_timeline_that_a_variable_asks_for_can_be_shaped(shown, monkeypatch):
    assert "rank 0" in shown("--dry-run", "-x", "DISTRUN_TIMELINE=t.json", "--timeline-steps", "3:5", "true")
    monkeypatch.setenv("DISTRUN_TIMELINE", "t.json")
    assert "rank 0" in shown("--dry-run", "--timeline-operations", "true")


def test_a_network_between_hosts_is_said_to_have_no_effect_on_one_host(shown):
    assert "--network eth9 has no effect on one host" in shown("--dry-run", "--network", "eth9", "true")


@pytest.mark.parametrize("options", [(), ("--elastic",)])
def test_far_more_ranks_than_cores_need_oversubscribe(refused, shown, monkeypatch, options):
    monkeypatch.setattr(machine, "count_cores", lambda: 2)
    status, sentence = refused(*options, "-np", "65", *PYTHON)
    assert status == 2
    assert sentence == ("-np 65 is more than 8 ranks for each of the 2 cores here: lower -np, or give --oversubscribe")
    more = (["-np", "64"], ["-np", "65", "--oversubscribe"], ["-np", "65", "-H", "localhost"], ["--slots", "65"])
    for words in more:
        assert "rank 63" in shown("--dry-run", *options, *words, *PYTHON)


@pytest.mark.parametrize(
    ("present", "listed", "words"),
    [
        (0, "[0,1]", "localhost has no GPU 0 and no GPU 1, but 0 GPUs: leave out the brackets"),
        (2, "2[1,2]", "localhost has no GPU 2, but 2 GPUs: list 0 to 1"),
        (None, "[a]", "'localhost:[a]' names 'a' as GPUs: allowed are different numbers or UUIDs, as in 0,2"),
    ],
)
def test_gpus_that_this_machine_does_not_have_are_refused(refused, monkeypatch, present, listed, words):
    monkeypatch.setattr(checks, "listed_gpus", lambda: present)
    assert refused("-H", f"localhost:{listed}", "true") == (2, words)


@pytest.mark.parametrize("listed", ["[1]", "[GPU-8a1b7c]"])
def test_gpus_that_nothing_lists_or_that_have_names_are_not_refused(shown, monkeypatch, listed):
    monkeypatch.setattr(checks, "listed_gpus", lambda: 1 if "GPU" in listed else None)
    assert "CUDA_VISIBLE_DEVICES=" in shown("--dry-run", "-H", f"localhost:{listed}", "true")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"np": 0}, "np=0 is not a number of ranks: give 1 or more, or None for all slots"),
        ({"np": 10**11}, "np=100000000000 is not a number of ranks: give 1 to 1048576"),
        (
            {"np": 1, "elastic": True, "spares": 10**11},
            "spares=100000000000 is not allowed: 100000000000 is not in the range",
        ),
        ({"np": 3, "hosts": "a:2"}, "np=3 asks .* 2 slots of a:2: lower np, give .* or give oversubscribe=True"),
        ({"np": 3, "min_np": 4}, "np=3 is not between min_np=4 and max_np=3: give numbers that rise"),
        ({"np": 2, "hosts_from": "/no/a b"}, "hosts_from='/no/a b' cannot be executed"),
        ({"np": 2, "wdir": "/no/where"}, "wdir='/no/where' is not a directory"),
        ({"np": 2, "env": {"a b": "1"}}, "env='a b=1' names no variable"),
    ],
    ids=lambda value: next(reversed(value)) if isinstance(value, dict) else "",
)
def test_errors_of_a_call_speak_of_arguments_and_not_of_options(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        run(print, **arguments)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that returns what a command line prints that ends well."""

    def output(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 0
        return capsys.readouterr().out

    return output


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_are_printed(shown, flag):
    assert "distrun" in shown(flag)


def test_a_dry_run_shows_the_plan_without_its_secret(shown):
    text = shown("-np", "2", "--dry-run", "true")
    assert "rank 1(2)" in text
    assert "DISTRUN_KEY=(secret)" in text


def test_a_dry_run_shows_the_first_ranks_and_the_limits_of_an_elastic_job(shown):
    text = shown("--dry-run", "-np", "2", "--min-np", "1", "--spares", "1", "-H", "localhost:3", *PYTHON)
    assert "rank 1(2)" in text
    assert "elastic: 2 ranks, from 1 to 2 later on; 10 failures within 3600 s; 1 spare per host" in text


def test_a_program_with_the_name_of_a_command_of_ours_can_be_started(shown, tmp_path, monkeypatch):
    program = tmp_path / "doctor"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "doctor" in shown("-np", "1", "--dry-run", "doctor")
