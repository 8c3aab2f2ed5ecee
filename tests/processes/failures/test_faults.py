"""Faults of real processes, after which nothing may be left of them."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from machines.rank_programs import DAEMON, SLEEP, STUBBORN
from session.tiers import one_in_gate

pytestmark = pytest.mark.gate

DEADLINE = 60.0  # seconds; as in conftest.py
HANDLER = "import signal; signal.signal(signal.{}, lambda *_: print('{}', flush=True)); print('ready', flush=True)\n"


def test_the_exit_code_of_the_failing_rank_is_the_exit_status(distrun, python):
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(42); time.sleep(1000)"
    said = distrun("-np", "3", "--grace", "1000", *python(code)).ended(42)  # the grace is not waited for
    assert said.count(b"rank 1 on localhost (pid ") == 1
    assert b"exited with code 42\n" in said


def test_the_failure_report_ends_with_the_last_lines_of_the_rank_that_raised(distrun, python):
    code = "import os, time\nif os.environ['RANK'] == '0': raise ValueError('no such data')\ntime.sleep(1000)"
    said = distrun("-np", "2", *python(code)).ended(1)
    before, _, failure_report = said.partition(b"distrun: rank 0 ")
    assert b"[0] ValueError: no such data\n" in before
    assert failure_report.endswith(b"    ValueError: no such data\n")


def test_a_rank_without_a_gpu_of_its_local_rank_is_told_which_one_it_has(distrun, python):
    code = "import os\nif os.environ['RANK'] == '1': raise RuntimeError('CUDA error: invalid device ordinal')"
    said = distrun("-np", "2", *python(code)).ended(1)
    assert b"    RuntimeError: CUDA error: invalid device ordinal\ndistrun: it asked for a GPU of a number " in said
    assert said.endswith(b"torch.cuda.current_device() or distrun.device().index, or start fewer ranks per host\n")


def test_a_killed_rank_is_reported_and_its_peers_are_stopped(distrun, python):
    code = (
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    )
    said = distrun("-np", "2", *python(code)).ended(137)
    assert b"rank 1 on localhost" in said
    assert b"was killed by SIGKILL\n" in said


@pytest.mark.parametrize("options", [(), ("-q",)])
def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(distrun, python, tmp_path, options):
    code = STUBBORN + (
        "import os, sys, time\n"
        "while os.environ['RANK'] == '0':\n"
        "    if os.path.exists(os.environ['IS_STUBBORN']): sys.exit(3)\n"
        "    time.sleep(0.01)\n"
        "open(os.environ['IS_STUBBORN'], 'w').close()\n"
        "time.sleep(1000)"
    )
    job = distrun(*options, "-np", "2", "--grace", "0.2", *python(code), IS_STUBBORN=str(tmp_path / "stubborn"))
    sentence = rb"distrun: rank 1 on localhost \(pid \d+\) had not ended 0\.2 s after being asked to \(--grace\)"
    assert len(re.findall(sentence, job.ended(3))) == (0 if options else 1)


def test_a_stopped_rank_ends_at_once_when_another_fails(ready):
    code = "import os, time; print('pid', os.getpid(), 'of', os.environ['RANK'], flush=True); time.sleep(1000)"
    job = ready(2, "-np", "2", "--grace", "1000", "--no-tag-output", code=code, sign=b"of")
    pids = {words[3]: int(words[1]) for words in (line.split() for line in job.stdout.data.splitlines())}
    os.kill(pids[b"1"], signal.SIGSTOP)
    os.kill(pids[b"0"], signal.SIGKILL)
    assert job.wait() == 137


def test_the_root_cause_is_reported_and_not_a_rank_that_lost_its_peer(distrun, python, tmp_path):
    """The first to exit only noticed the end of its peer, whose interpreter takes its time to shut down."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"""
import os, sys
class JobAbortedError(Exception): __module__ = 'distrun.errors'
if os.environ['RANK'] == '0':
    end = open({str(fifo)!r}, 'w')  # kept open until rank 0 is dead
    raise JobAbortedError('rank 1 is gone')
open({str(fifo)!r}).read()
sys.exit(9)
"""
    said = distrun("-np", "2", *python(code)).ended(9)
    assert said.count(b"distrun: rank 1 on localhost") == 1


@pytest.mark.parametrize("signum", one_in_gate(signal.SIGTERM, signal.SIGHUP))
def test_a_signal_to_distrun_ends_the_ranks(ready, signum):
    job = ready(2, "-np", "2")
    job.process.send_signal(signum)
    assert job.wait() == 128 + signum


def test_a_job_started_by_nohup_survives_the_end_of_the_login(distrun, python):
    job = distrun(
        *("-np", "1", "--stdin", "0", *python("print('ready', flush=True); print('end of', input())")),
        stdin=subprocess.PIPE,
        before_exec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    job.stdout.wait_for(b"ready")
    job.process.send_signal(signal.SIGHUP)
    job.process.stdin.write(b"training\n")
    job.process.stdin.close()
    assert job.wait() == 0
    assert b"end of training" in job.stdout.data


def test_ranks_are_born_with_default_signals_whatever_distrun_was_born_with(output, python):
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def ignore_and_block():
        for signum in ends:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, (*ends, signal.SIGCHLD, signal.SIGUSR1))

    # Ignored and blocked signals of this process, before Python changes any of its own.
    code = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))])"
    printed = output("-np", "1", "--no-tag-output", *python(code), before_exec=ignore_and_block)
    blocked, ignored = (int(mask, 16) for mask in ast.literal_eval(printed.decode()))
    assert blocked == 0
    assert not any(ignored >> (signum - 1) & 1 for signum in ends)


def test_ctrl_c_reaches_the_ranks_as_sigint(ready):
    code = "try: import time; print('ready', flush=True); time.sleep(1000)\nexcept KeyboardInterrupt: print('tidy')"
    job = ready(2, "-np", "2", code=DAEMON + code)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert job.stdout.data.count(b"tidy") == 2
    assert b"distrun: rank" not in job.stderr.data


def test_a_second_ctrl_c_kills_at_once(ready):
    code = HANDLER.format("SIGINT", "no") + "while True: signal.pause()"
    job = ready(2, "-np", "2", "--grace", "1000", code=code)
    job.process.send_signal(signal.SIGINT)
    job.stdout.wait_for(b"no", 2)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130


def test_sigusr1_is_forwarded_and_changes_nothing_else(ready):
    code = (  # a pipe, since a signal that came just before signal.pause() would be waited for in vain
        "import os, signal; ours, theirs = os.pipe()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(theirs, b'!'))\n"
        "print('ready', flush=True); os.read(ours, 1); print('got it', flush=True)"
    )
    job = ready(2, "-np", "2", code=code)
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait() == 0
    assert job.stdout.data.count(b"got it") == 2


def test_who_waits_in_init_fails_at_once_when_another_rank_has_ended_without_calling_it(distrun, python):
    code = "import os, sys, distrun\nif os.environ['RANK'] == '2': sys.exit(0)\ndistrun.init()"
    said = distrun("-np", "3", "--start-timeout", "1000", *python(code)).ended(1)
    text = rb"distrun\.errors\.BootstrapError: rank 2 on localhost \(pid \d+\) exited with code 0 before it joined the "
    assert re.search(text + rb"others in init\(\)\n", said)


def test_nothing_survives_the_sigkill_of_distrun(ready):
    job = ready(2, "-np", "2", code=STUBBORN + DAEMON + SLEEP)
    family = job.family()
    assert len(family) >= 4
    job.process.kill()
    job.process.wait(DEADLINE)
    assert psutil.wait_procs(family, timeout=DEADLINE)[1] == []
    assert job.wait() == -signal.SIGKILL


def test_a_daemon_that_holds_the_output_pipe_does_not_keep_the_job(output, python):
    assert output("-np", "2", *python(DAEMON)).count(b"daemon") == 2


@pytest.mark.full
def test_a_stubborn_daemon_is_killed_after_the_grace(distrun, python):
    distrun("-np", "1", "--grace", "0.2", *python(STUBBORN + DAEMON)).ended(0)


def test_the_sigkill_of_the_agent_is_reported_and_leaves_nothing(ready):
    job = ready(2, "-np", "2", code=DAEMON + SLEEP)
    agent = job.agent()
    agent.kill()
    assert f"the agent on localhost (pid {agent.pid}) was killed by SIGKILL".encode() in job.ended(137)


@pytest.mark.parametrize("options", one_in_gate((), ("--elastic",), chosen=1))
def test_nothing_survives_the_sigkill_of_distrun_and_its_agent_at_once(ready, tmp_path, options):
    job = ready(2, *options, "-np", "2", code=DAEMON + SLEEP)
    assert len(list((tmp_path / "tmp").glob("dr-*"))) == 2 * len(options)  # the folders of an elastic job's ranks
    family, both = job.family(), [job.process, job.agent()]
    assert len(family) == 6
    for process in both:
        process.send_signal(signal.SIGSTOP)  # so that neither can do anything about the end of the other
    for process in both:
        process.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert psutil.wait_procs(family, timeout=DEADLINE)[1] == []


def test_the_guard_of_an_agent_ends_with_it(ready):
    job = ready(1, "-np", "1")
    (guard,) = (process for process in job.agent().children() if "distrun-guard" in process.cmdline())
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert not guard.is_running()


@pytest.mark.full
def test_a_guard_that_is_killed_is_not_missed(ready):
    job = ready(1, "-np", "1")
    (guard,) = (process for process in job.agent().children() if "distrun-guard" in process.cmdline())
    guard.kill()
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143


def test_a_command_that_vanishes_before_exec_ends_with_127(distrun, tmp_path):
    """The interpreter of a script is looked for by the kernel, after our own check."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    said = distrun("-np", "2", str(script)).ended(127)
    assert b"could not be started" in said


@pytest.mark.parametrize("ends", one_in_gate(b"", b"\r\n", chosen=1), ids=["one line", "many lines"])
def test_ten_megabytes_that_are_not_utf8_arrive_intact(output, python, ends):
    data = bytes(byte for byte in range(256) if byte not in b"\r\n" or byte in ends) * 40000
    kept = f"b not in b'\\r\\n' or b in {ends!r}"
    code = f"import sys; sys.stdout.buffer.write(bytes(b for b in range(256) if {kept}) * 40000)"
    assert output("-np", "1", "--no-tag-output", *python(code)) == data


def test_a_long_line_has_one_tag(output, python):
    assert output("-np", "1", *python("print('x' * 10_000_000)")) == b"[0] " + b"x" * 10_000_000 + b"\n"


def test_a_reader_that_pauses_loses_nothing_and_delays_no_exit(distrun, python):
    """Backpressure: nobody reads distrun's output for a while, and still the failure of a rank ends the other."""
    code = """
import os, sys
if os.environ['RANK'] == '1':
    sys.stdin.read()
    sys.exit(7)
while True:
    os.write(1, b'y' * 65535 + b'\\n')
"""
    job = distrun("-np", "2", "--stdin", "1", *python(code), stdin=subprocess.PIPE, collect=False)
    pipe = job.process.stdout
    pipe.read(1 << 22)  # more than all buffers on the way hold; from here on they fill up
    ranks = [process for process in job.family() if process.ppid() == job.agent().pid]
    assert len(ranks) == 2
    job.process.stdin.close()
    assert psutil.wait_procs(ranks, timeout=DEADLINE)[1] == []
    assert set(pipe.read()) <= set(b"[0] y\n")
    assert b"distrun: rank 1 " in job.ended(7)
    pipe.close()


@pytest.mark.parametrize("code", ["print(1)", "import time\nprint(1, flush=True)\ntime.sleep(1000)"])
def test_a_full_disk_ends_the_job_with_a_word(tmp_path, code):
    command = [sys.executable, "-m", "distrun.runner", "-q", "-np", "2", sys.executable, "-c", code]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE, check=False)
    assert (done.returncode, done.stderr) == (1, b"distrun: stdout cannot be written: No space left on device\n")


def test_a_script_of_horovod_is_told_how_it_runs(distrun, python):
    said = distrun("-np", "2", *python("raise ModuleNotFoundError(\"No module named 'horovod'\")")).ended(1)
    assert said.endswith(b"give --horovod, or set DISTRUN_HOROVOD=1\n")


def test_a_reader_that_is_gone_ends_the_job_as_sigpipe_would(distrun, python):
    job = distrun("-np", "2", *python("import os\nwhile True: os.write(1, b'y\\n')"), collect=False)
    job.process.stdout.readline()
    job.process.stdout.close()
    assert job.wait() == 141


def test_thirty_two_ranks_start_and_end_on_a_small_machine(distrun):
    distrun("-np", "32", "true").ended(0)
