"""`distrun` within an allocation of a real Slurm: srun starts its agents, and nothing is left whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from machines.namespaces import command_line
from machines.rank_programs import DAEMON, SLEEP, STUBBORN
from running_distrun import DEADLINE

CORES = len(os.sched_getaffinity(0))  # this Slurm counts two per node, and lets steps that are bound to none use all
WHO = "import os; print(os.environ['RANK'], os.uname().nodename, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'])"


@pytest.mark.gate
def test_every_slot_of_the_allocation_gets_a_rank(distrun, python, allocation):
    job = distrun(*python(WHO))
    assert job.wait() == 0, job.stderr.data
    expected = {b"[0] 0 alpha 0 4", b"[1] 1 alpha 1 4", b"[2] 2 beta 0 4", b"[3] 3 beta 1 4"}
    assert set(job.stdout.data.splitlines()) == expected
    assert f"distrun: hosts of Slurm job {allocation.job}: alpha:2,beta:2\n".encode() in job.stderr.data


def test_ranks_may_use_all_cores_and_do_not_take_themselves_for_tasks_of_srun(output, python, slurm):
    code = """
import os
tasks = ('SLURM_STEP', 'SLURM_PROC', 'PMI')
print(len(os.sched_getaffinity(0)), [name for name in os.environ if name.startswith(tasks)])
"""
    printed = output(
        "--no-tag-output", *python(code), SLURM_CPU_BIND="map_cpu:0", SLURM_MEM_PER_CPU="10", SRUN_DEBUG="5"
    )
    assert printed == b"%d []\n" % CORES * 4


def test_variables_of_the_shell_come_along(output, python):
    code = "import os; print(os.environ['RANK'], os.environ['FAVOURITE'], os.environ['OTHER'])"
    assert output("-x", "OTHER=b", *python(code), FAVOURITE="a\nc").count(b"c b") == 4


def test_horovods_mode_comes_along(output, python):
    printed = output("--horovod", *python("import os, horovod; print(horovod.__version__, os.environ['HOROVOD_SIZE'])"))
    assert printed.count(b"0.28.1+distrun 4") == 4


def test_hosts_may_be_chosen_among_those_of_the_allocation(output, python):
    assert set(output("-H", "beta:2", *python(WHO)).splitlines()) == {b"[0] 0 beta 0 2", b"[1] 1 beta 1 2"}
    assert set(output("--slots", "1", *python(WHO)).splitlines()) == {b"[0] 0 alpha 0 2", b"[1] 1 beta 0 2"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-np", "5"], "-np 5 asks for more ranks than the 4 slots of alpha:2,beta:2"),
        (["--launcher", "srun", "-H", "gamma"], "srun does not reach gamma: allowed are the hosts of Slurm job"),
        (["--wdir", "/no/where"], "beta: the working directory '/no/where' does not exist there"),
        (["--python", "/no/python"], "beta: its Python '/no/python' cannot be started (execve(): /no/python: No such"),
    ],
    ids=["np", "hosts", "wdir", "python"],
)
def test_what_cannot_be_is_said_in_a_sentence(distrun, arguments, complaint):
    said = distrun(*arguments, "true").ended(2)
    assert complaint in said.decode()
    assert b"Traceback" not in said


@pytest.mark.gate
def test_an_allocation_that_is_gone_is_told(distrun):
    job = distrun("true", SLURM_JOB_ID="99999")
    assert b"alpha: srun cannot start the agent: Unable to confirm allocation for job 99999" in job.ended(2)


def test_a_shell_that_srun_started_can_use_the_whole_allocation(slurm, allocation, python):
    launch = [
        sys.executable,
        "-m",
        "distrun.runner",
        *python("import os; print(os.uname()[1], len(os.sched_getaffinity(0)))"),
    ]
    command = ["srun", "--quiet", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", *launch]
    done = subprocess.run(command, env=allocation.environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] {host} {CORES}" for rank, host in enumerate(("alpha", "alpha", "beta", "beta"))]
    assert sorted(done.stdout.splitlines()) == expected


def test_srun_distrun_is_refused(slurm):
    command = ["srun", "--quiet", "--nodes=2", "--ntasks=4", sys.executable, "-m", "distrun.runner", "true"]
    done = subprocess.run(command, env=slurm.environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 2
    assert "distrun: error: srun started 4 copies of distrun" in done.stderr


def test_the_ssh_launcher_takes_the_hosts_of_the_allocation_too(output):
    printed = output("--launcher", "ssh", "--dry-run", "true")
    assert b"4 ranks on 2 hosts" in printed
    assert re.findall(rb"^host (\w+).*: 2 ranks", printed, re.MULTILINE) == [b"alpha", b"beta"]


@pytest.mark.gate
def test_every_byte_comes_through(distrun, python):
    """Frames have no ends of lines, which srun would wait for, and all bytes."""
    code = """
import os, sys
data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data if os.environ['RANK'] == '3' else b'')
"""
    read, write = os.pipe()
    job = distrun("--stdin", "3", "--no-tag-output", *python(code), stdin=read)
    os.close(read)
    payload = bytes(byte for byte in range(256) if byte != 10) * 40_000 + bytes(range(256)) * 40
    with open(write, "wb") as pipe:
        pipe.write(payload)
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data == payload


def test_functions_are_run_too(slurm, allocation):
    code = """
import os
import distrun
if __name__ == '__main__':
    print(distrun.run(lambda: (os.environ['RANK'], os.uname().nodename), np=None))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=allocation.environ, capture_output=True, text=True, timeout=DEADLINE)
    assert done.stdout == "[('0', 'alpha'), ('1', 'alpha'), ('2', 'beta'), ('3', 'beta')]\n", done.stderr


def test_cells_of_a_notebook_are_run_on_all_nodes(slurm, allocation):
    cell = "import os; print(os.environ['RANK'], os.uname().nodename)"
    command = [sys.executable, "-c", f"from distrun.tools.notebook import run_cell; run_cell('-q', {cell!r})"]
    done = subprocess.run(command, env=allocation.environ, capture_output=True, text=True, timeout=DEADLINE)
    printed = sorted(done.stdout.splitlines())
    assert printed == ["[0] 0 alpha", "[1] 1 alpha", "[2] 2 beta", "[3] 3 beta"], done.stderr


@pytest.mark.gate
def test_no_secret_is_on_a_command_line(ready):
    job = ready(4)
    family = job.family()
    (key,) = {item.environ()["DISTRUN_KEY"] for item in family if "DISTRUN_KEY" in item.environ()}
    sruns = [item for item in family if item.name() == "srun"]
    assert len(sruns) >= 2
    assert all(key not in " ".join(item.cmdline()) for item in family)
    assert all("DISTRUN_KEY" not in item.environ() for item in sruns)
    job.process.terminate()
    assert job.wait() == 143


# --- faults


@pytest.mark.gate
def test_the_exit_code_and_last_words_come_from_the_other_node(distrun, python):
    fail = "sys.stderr.write('alas\\n'); sys.exit(42)"
    code = f"import os, sys, time\nif os.environ['RANK'] == '3': {fail}\ntime.sleep(1000)"
    assert distrun(*python(code)).ended(42).endswith(b"    alas\n")


def test_a_killed_rank_is_reported(distrun, python):
    code = (
        "import os, signal, time\nif os.environ['RANK'] == '2': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    )
    said = distrun(*python(code)).ended(137)
    assert b"distrun: rank 2 on beta (pid " in said
    assert b"was killed by SIGKILL" in said


def test_a_signal_to_distrun_ends_the_ranks(ready):
    job = ready(4)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130


@pytest.mark.gate
def test_stubborn_ranks_and_their_daemons_are_gone_after_the_sigkill_of_distrun(ready, slurm):
    job = ready(4, code=STUBBORN + DAEMON + SLEEP)
    left = slurm.all_processes()
    assert len(left) >= 10
    job.process.kill()
    assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []
    assert job.wait() == -signal.SIGKILL
    slurm.assert_no_process()
    assert psutil.wait_procs(job.family(), timeout=DEADLINE)[1] == []  # srun


def test_the_sigkill_of_an_agent_is_reported_and_leaves_nothing(ready, slurm):
    job = ready(4, code=DAEMON + SLEEP)
    agent = slurm.agents()["beta"]
    agent.kill()
    assert f"the agent on beta (pid {agent.pid}) was killed".encode() in job.ended(137)


def test_the_sigkill_of_srun_is_reported_and_leaves_nothing(ready):
    job = ready(4, code=DAEMON + SLEEP)
    (srun, *_) = [item for item in job.family() if item.name() == "srun" and "--nodelist=beta" in item.cmdline()]
    srun.kill()
    assert job.wait() != 0
    assert b"the agent on beta" in job.stderr.data


def test_an_agent_that_hangs_is_ended_with_its_ranks(ready, slurm):
    job = ready(4, "--keepalive", "5", code=DAEMON + SLEEP)
    slurm.agents()["beta"].suspend()
    assert b"nothing was heard from beta for 5 s" in job.ended(1)


@pytest.mark.gate
def test_a_node_that_is_cut_off_is_noticed_at_both_ends(ready, slurm, allocation):
    beta = slurm.network.hosts["beta"]
    job = ready(4, "--keepalive", "5")
    left = slurm.all_processes()
    beta.cut()
    try:
        assert b"nothing was heard from beta for 5 s" in job.ended(1)
        assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []
    finally:
        beta.mend()
        allocation.end()
        slurm.wait_for_nodes()  # before the next test


@pytest.mark.gate
def test_scancel_ends_a_job_of_stubborn_ranks_and_is_told(ready, slurm, allocation):
    job = ready(4, code=STUBBORN + SLEEP)
    slurm.run("scancel", allocation.job)
    assert job.wait() == 143
    if b"was killed by SIGTERM" not in job.stderr.data:  # Slurm tells ranks and agents at the same time
        assert re.search(rb"the agent on \w+ \(pid \d+\) was ended by Slurm: STEP .* CANCELLED", job.stderr.data)


# --- within a batch script, where the launcher shares its node with ranks


@pytest.mark.gate
def test_a_batch_script_starts_ranks_here_and_on_the_other_node(submit, python, slurm):
    batch = submit("-v", *python(WHO))
    assert batch.wait() == 0, batch.output
    for line in ("[0] 0 alpha 0 4", "[1] 1 alpha 1 4", "[2] 2 beta 0 4", "[3] 3 beta 1 4"):
        assert line in batch.output
    slurm.assert_no_process()


def test_the_launchers_own_agent_is_killed_and_the_other_node_is_not_forgotten(submit, python, slurm):
    batch = submit(*python(DAEMON + SLEEP))
    batch.wait_for("ready", 4)
    (agent,) = (item for item in slurm.all_processes() if command_line(item)[-2:] == ["-m", "distrun.runner.agent"])
    agent.kill()
    assert batch.wait() == 137
    assert f"the agent on alpha (pid {agent.pid}) was killed by SIGKILL" in batch.output
    slurm.assert_no_process()


def test_scancel_ends_a_batch_script(submit, python, slurm):
    batch = submit(*python(SLEEP))
    batch.wait_for("ready", 4)
    slurm.run("scancel", batch.job)
    # Not by sbatch's status: it was 0 once, as if it had looked before the script's own was noted.
    assert slurm.wait_for_end(batch.job) == "CANCELLED"
    assert f"ExitCode={128 + signal.SIGTERM}:0" in slurm.run("scontrol", "show", "job", batch.job)
    slurm.assert_no_process()


def test_nodes_get_the_code_and_what_their_python_lacks(distrun, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "where.py").write_text("import os, socket\nprint(socket.gethostname(), os.getcwd(), flush=True)\n")
    (project / "run").write_text("#!/bin/sh\nexec /usr/bin/python3 where.py\n")
    (project / "run").chmod(0o755)
    cache = str(tmp_path / "cache")
    ship = ("--ship", str(project), "--wdir", str(project), "--python", "/usr/bin/python3", "--no-tag-output")
    job = distrun(*ship, "./run", XDG_CACHE_HOME=cache)
    assert job.wait() == 0, job.stderr.data
    places = [line.split() for line in job.stdout.data.decode().splitlines()]
    assert sorted(node for node, _ in places) == ["alpha", "alpha", "beta", "beta"]
    assert all(place.startswith(f"{cache}/distrun/trees/") for _, place in places)
    assert len({place for _, place in places}) == 2
    assert "import psutil" not in job.stderr.data.decode()
