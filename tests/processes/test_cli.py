"""The command line: what its options do to real ranks. What it refuses is in tests/unit/runner/command_lines."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest
from session.tiers import one_in_gate

from distrun.runner.system.cpus import divided, format_cpus, groups

pytestmark = pytest.mark.gate

SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))"


def test_ranks_get_their_environment_arguments_and_directory(distrun, python, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# this machine\n\nlocalhost slots=4 max_slots=8\n")
    job = distrun(
        *("--num-proc", "2", "--hostfile", str(hosts), "-x", "A=1", "-x", "TAK*", "--wdir", str(tmp_path)),
        *("--no-tag-output", "--openmpi-env", "--stall-warning", "3", "--stall-timeout", "4.5", "--start-timeout", "9"),
        *python(SHOW),
        *("-np", "7", "--help"),
        TAKEN="2",
        RANK="99",
        OMP_NUM_THREADS="5",
    )
    assert job.wait() == 0
    shown = sorted(map(json.loads, job.stdout.data.splitlines()), key=lambda item: item[0]["RANK"])
    for rank, (environ, arguments, directory) in enumerate(shown):
        assert arguments == ["-np", "7", "--help"]
        assert directory == str(tmp_path)
        expected = {
            **{"RANK": str(rank), "WORLD_SIZE": "2", "DISTRUN_RANK": str(rank), "OMPI_COMM_WORLD_RANK": str(rank)},
            **{"A": "1", "TAKEN": "2", "OMP_NUM_THREADS": "5", "PYTHONUNBUFFERED": "1"},
            **{"DISTRUN_STALL_WARNING": "3", "DISTRUN_STALL_TIMEOUT": "4.5", "DISTRUN_START_TIMEOUT": "9"},
        }
        assert expected.items() <= environ.items()
    assert len(shown) == 2
    assert shown[0][0]["DISTRUN_KEY"] == shown[1][0]["DISTRUN_KEY"]
    assert job.stderr.data == b""


def test_a_settings_file_and_a_script_are_all_that_a_job_needs(distrun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "distrun.toml").write_text('[profiles.two]\nnp = 2\nhosts = ["localhost:2"]\nx = ["A=1"]\n')
    (tmp_path / "train.py").write_text("import os, sys; print(os.environ['A'], *sys.argv[1:])")
    job = distrun("--profile", "two", "train.py", "--lr", "3", OMP_NUM_THREADS="1")
    assert job.wait() == 0
    assert sorted(job.stdout.data.splitlines()) == [b"[0] 1 --lr 3", b"[1] 1 --lr 3"]
    settings, *_ = job.stderr.text.splitlines()
    assert settings == ('distrun: settings of distrun.toml, profile two: np = 2, hosts = "localhost:2", x = ["A"]')


def test_np_caps_the_slots(distrun):
    job = distrun("-np", "2", "-H", "localhost:4", "echo", "hi")
    assert job.wait() == 0
    assert sorted(job.stdout.data.splitlines()) == [b"[0] hi", b"[1] hi"]
    assert b"OMP_NUM_THREADS=" in job.stderr.data or "OMP_NUM_THREADS" in os.environ


@pytest.mark.parametrize("hosts", one_in_gate("localhost,127.0.0.1", "localhost:1,127.0.0.1:1", "localhost,localhost"))
def test_all_names_of_this_machine_are_one_host(output, python, hosts):
    code = "import os; print(os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE'], os.environ['GROUP_RANK'])"
    printed = output("-H", hosts, "--no-tag-output", *python(code))
    assert sorted(printed.splitlines()) == [b"0 2 0", b"1 2 0"]


def test_standard_input_goes_to_the_chosen_rank_and_its_answer_comes_back(ready):
    code = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('got', line, end='', flush=True)"
    job = ready(2, "-np", "2", "--stdin", "1", code=code, stdin=subprocess.PIPE)
    for line in (b"one\n", b"two\n"):
        job.process.stdin.write(line)
        job.process.stdin.flush()
        job.stdout.wait_for(b"[1] got " + line)
    job.process.stdin.close()
    assert job.wait() == 0
    assert b"[0] got" not in job.stdout.data


@pytest.mark.full
def test_a_debugger_can_be_used(distrun, python):
    job = distrun(
        "-np",
        "2",
        "--stdin",
        "0",
        *python("import os\nif os.environ['RANK'] == '0': breakpoint(); print()"),
        stdin=subprocess.PIPE,
    )
    job.stdout.wait_for(b"(Pdb) ")
    job.process.stdin.write(b"p 6 * 7\n")
    job.process.stdin.flush()
    job.stdout.wait_for(b"42\n")
    job.process.stdin.write(b"c\n")
    job.process.stdin.close()
    assert job.wait() == 0


def test_much_standard_input_passes_a_slow_reader_unharmed(distrun, python):
    code = "import hashlib, sys; print(hashlib.sha1(sys.stdin.buffer.read()).hexdigest())"
    job = distrun("-np", "1", "--stdin", "0", "--no-tag-output", *python(code), stdin=subprocess.PIPE)
    data = os.urandom(1 << 22)
    job.process.stdin.write(data)
    job.process.stdin.close()
    assert job.wait() == 0
    assert job.stdout.data.decode().strip() == hashlib.sha1(data).hexdigest()


@pytest.mark.parametrize("np", one_in_gate(1, 11, chosen=1))
def test_output_is_kept_in_files_of_each_rank(output, tmp_path, np):
    printed = output("-np", str(np), "--output-dir", str(tmp_path / "logs"), "sh", "-c", "echo $RANK; echo e$RANK >&2")
    for rank in range(np):
        directory = tmp_path / "logs" / (f"rank.{rank:02}" if np > 10 else f"rank.{rank}")
        assert (directory / "stdout").read_bytes() == b"%d\n" % rank
        assert (directory / "stderr").read_bytes() == b"e%d\n" % rank
        assert b"[%d] %d\n" % (rank, rank) in printed


def test_a_rank_filter_shows_some_ranks(output):
    printed = output("-np", "4", "--rank-filter", "0,2-3", "sh", "-c", "echo hi")
    assert sorted(printed.splitlines()) == [b"[0] hi", b"[2] hi", b"[3] hi"]


def test_verbose_tells_of_processes_and_never_the_key(distrun, python):
    job = distrun("-np", "1", "-v", *python("import os; print(os.environ['DISTRUN_KEY'])"))
    assert job.wait() == 0
    key = job.stdout.data.split()[1]
    assert b"rank 0 on localhost started (pid " in job.stderr.data
    assert key not in job.stderr.data


def test_no_secret_is_on_a_command_line_or_in_the_agents_environment(distrun, python):
    code = "import os, signal; print(os.environ['DISTRUN_KEY'], flush=True); signal.pause()"
    job = distrun("-np", "1", *python(code))
    key = job.stdout.wait_for(b"\n").split()[1].decode()
    for process in job.family():
        assert key not in " ".join(process.cmdline())
    assert "DISTRUN_KEY" not in job.agent().environ()
    job.process.terminate()
    job.wait()


def test_closed_standard_descriptors_do_no_harm(tmp_path):
    command = f"'{sys.executable}' -m distrun.runner -np 1 sh -c 'touch {tmp_path}/done' <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    assert (tmp_path / "done").exists()


def test_bound_ranks_have_their_share_of_the_cpus_that_the_launcher_may_use(distrun, python):
    cpus = sorted(os.sched_getaffinity(0))[:2]
    show = python("import os; print(sorted(os.sched_getaffinity(0)))")
    options = ("-np", str(len(cpus)), "--bind-to", "core", "--report-bindings")
    job = distrun(*options, *show, before_exec=lambda: os.sched_setaffinity(0, cpus))
    assert job.wait() == 0
    cores = groups("core", cpus)
    for rank in range(len(cpus)):
        own = divided(cores, rank, len(cpus))
        assert f"[{rank}] {sorted(own)}\n".encode() in job.stdout.data
        assert f"distrun: rank {rank} on localhost is bound to CPUs {format_cpus(own)}\n".encode() in job.stderr.data


def test_a_job_that_takes_too_long_ends_with_124(distrun):
    job = distrun("-np", "2", "--quiet", "--timeout", "0.5", "sleep", "1000")
    assert job.ended(124) == b"distrun: the job took longer than the 0.5 s of --timeout\n"


TUNED = """
import numpy as np, distrun
distrun.init()
tensors = [np.ones(16384, np.float32) for _ in range(40)]
for _ in range(75):
    for handle in [distrun.allreduce_async_(each, f"t{n}", distrun.Max) for n, each in enumerate(tensors)]:
        handle.wait()
assert all((each == 1).all() for each in tensors)
print(len(distrun.autotuned()))
"""


@pytest.mark.full
def test_a_job_that_tunes_ends_its_tuning_says_so_and_leaves_a_log(distrun, python, tmp_path):
    log = tmp_path / "log.csv"
    job = distrun("-np", "2", "--autotune", "--autotune-log-file", str(log), *python(TUNED))
    assert job.wait() == 0
    said = [line for line in job.stderr.data.decode().splitlines() if "autotune" in line]
    assert len(said) == 1
    assert said[0].startswith("[0] distrun: autotune: ")
    assert sorted(job.stdout.data.decode().splitlines()) == ["[0] 1", "[1] 0"]
    header, *rows = log.read_text().splitlines()
    assert header == "world,tuned,step,setting,seconds,decision"
    assert 5 + 2 * 2 + 1 <= len(rows) <= 51  # warm-up, two pairs of steps at least, and the end
    assert "end: " in rows[-1]


# Has SIGINT come in the middle of the imports of a command, which take a tenth of a second.
INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from {command} import main
main()
"""


@pytest.mark.parametrize(
    ("command", "module", "status"),
    [
        ("distrun.cli", "click", -signal.SIGINT),
        pytest.param("distrun.cli", "distrun.runner.launch.launch", 130, marks=pytest.mark.full),
        pytest.param("distrun.compat", "distrun.cli", -signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_ctrl_c_while_a_command_starts_prints_nothing(command, module, status):
    code = INTERRUPTED.format(command=command, module=module)
    done = subprocess.run(
        [sys.executable, "-c", code, "-np", "1", "true"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (status, b"")
    assert b"Traceback" not in done.stderr


def test_python_m_distrun_is_distrun():
    done = subprocess.run([sys.executable, "-m", "distrun", "--version"], capture_output=True, timeout=60, check=True)
    assert done.stdout.startswith(b"distrun ")
