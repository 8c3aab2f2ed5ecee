"""`distrun doctor` on real hosts: each trouble is found at its own step, and nothing is left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machines.namespaces import make_key
from running_distrun import DEADLINE

STEPS = ["name", "tcp", "host key", "login", "python", "distrun", "directory", "clock"]
LOOKS = ["machine", "gpus", "network", "software"]
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def doctor(distrun):
    """Runs `distrun doctor --json` to an end with this exit status; returns its report."""

    def run(*arguments, status=0):
        job = distrun("doctor", "--json", *arguments)
        assert (job.wait(), b"Traceback" in job.stderr.data) == (status, False), (job.stdout.data, job.stderr.data)
        return json.loads(job.stdout.data)

    return run


def steps(report, host):
    """Return the steps of a host, by their names."""
    (found,) = (item for item in report["hosts"] if item["host"] == host)
    return {step["step"]: step for step in found["steps"]}


def failure(report, host, step):
    """Return the step at which a host failed, checking that earlier ones went well and later ones were not tried."""
    found = steps(report, host)
    names = list(found)
    assert names == STEPS + LOOKS
    assert [name for name in names if found[name]["status"] == "failed"] == [step]
    assert all(found[name]["status"] == "ok" for name in names[: names.index(step)])
    assert all(found[name]["status"] == "not tried" for name in names[names.index(step) + 1 :])
    return found[step]


def run_by_hand(step, home):
    """Run the command that the report recommends, as the user would type it."""
    environ = {**os.environ, "HOME": str(home.directory)}
    return subprocess.run(["sh", "-c", step["command"]], env=environ, check=False, capture_output=True, text=True)


@pytest.mark.gate
def test_good_hosts_pass_every_step_and_the_network_between_them_is_measured(doctor, alpha, beta, network):
    report = doctor("-H", "alpha,beta,localhost", "--network", "10.231.0.0/16")
    assert report["format"] == 1
    assert report["ok"] is True
    assert report["notes"] == []
    for host in ("alpha", "beta"):
        found = steps(report, host)
        assert list(found) == STEPS + LOOKS
        assert all(found[name]["status"] == "ok" for name in STEPS), found
    assert steps(report, "alpha")["name"]["text"] == alpha.address
    assert steps(report, "beta")["tcp"]["text"] == f"{beta.address} port 2222"
    assert steps(report, "beta")["host key"]["text"].startswith("ssh-ed25519 SHA256:")
    assert steps(report, "alpha")["login"]["text"] == "as root"
    assert steps(report, "alpha")["network"]["text"] == f"eth0 {alpha.address}/24"
    assert list(steps(report, "localhost")) == [*STEPS[4:7], *LOOKS]
    machine = report["hosts"][0]["machine"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory"] > 1 << 28
    addresses = {"alpha": alpha.address, "beta": beta.address, "localhost": network.address}
    pairs = {(link["from"], link["to"]) for link in report["links"]}
    assert pairs == {(one, other) for one in addresses for other in addresses if one != other}
    for link in report["links"]:
        assert link["status"] != "failed", link  # how fast it is depends on what else runs on this machine
        assert link["from_address"] == addresses[link["from"]]
        assert link["to_address"] == addresses[link["to"]]
        assert link["round_trip_s"] > 0
        assert link["bytes_per_s"] > 0


def test_a_name_that_is_not_found_is_the_first_step(doctor):
    report = doctor("-H", "no-such-host.invalid,alpha", status=1)
    found = failure(report, "no-such-host.invalid", "name")
    assert "'no-such-host.invalid' is not found" in found["text"]
    assert "HostName" in found["remedy"]
    assert found["command"] == "getent ahosts no-such-host.invalid"
    assert steps(report, "alpha")["clock"]["status"] == "ok"


def test_a_port_where_nobody_listens_and_a_host_that_does_not_answer(doctor, home, alpha, network):
    closed = f"Host closed\n  HostName {alpha.address}\n  Port 9\n"
    home.config.write_text(f"{closed}Host {network.nobody}\n  ConnectTimeout 1\n" + home.config.read_text())
    report = doctor("-H", f"closed,{network.nobody}", status=1)
    refused, silent = failure(report, "closed", "tcp"), failure(report, network.nobody, "tcp")
    assert f"connection to {alpha.address} port 9 was refused" in refused["text"]
    assert "does sshd run there" in refused["remedy"]
    assert "refused" in run_by_hand(refused, home).stderr
    assert network.nobody in silent["text"]
    assert run_by_hand(silent, home).returncode != 0


@pytest.mark.gate
def test_a_changed_and_an_unknown_key(doctor, home, alpha, tmp_path):
    other = " ".join(make_key(tmp_path / "other").read_text().split()[:2])
    home.known_hosts.write_text(f"{alpha.address} {other}\n")
    report = doctor("-H", "alpha,beta", status=1)
    changed, unknown = failure(report, "alpha", "host key"), failure(report, "beta", "host key")
    assert "has changed" in changed["text"]
    assert "ssh-keygen -f" in changed["remedy"]
    assert "is not known" in unknown["text"]
    assert "--ssh-accept-new" in unknown["remedy"]
    shown = run_by_hand(unknown, home).stdout
    assert unknown["text"].split()[4] in shown  # the fingerprint
    report = doctor("-H", "beta", "--ssh-accept-new")


def test_a_refused_login(doctor, home, alpha, tmp_path):
    make_key(tmp_path / "stranger")
    home.config.write_text(f"Host alpha\n  HostName {alpha.address}\n  User root\n")
    report = doctor("-H", "alpha", "-i", str(tmp_path / "stranger"), status=1)
    found = failure(report, "alpha", "login")
    assert "root may not log in there" in found["text"]
    assert "ssh-copy-id root@alpha" in found["remedy"]
    assert found["command"] == f"ssh -o BatchMode=yes -i {tmp_path}/stranger root@alpha true"


def wrapper(tmp_path, code):
    """Return a Python that executes some code first."""
    (tmp_path / "sitecustomize.py").write_text(code)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("script", "step", "text", "remedy"),
    [
        ("", "python", "/python' cannot be started", "--python"),
        ("'distrun'", "distrun", "distrun is not installed", "pip install"),
        ("'distrun.tools.doctor'", "distrun", "an older distrun", "pip install"),
        (None, "distrun", "distrun 0.0.7 is installed there and 0.", "-m pip install "),
    ],
    ids=["missing", "without distrun", "with an old distrun", "with another distrun"],
)
def test_a_python_that_will_not_do(doctor, tmp_path, script, step, text, remedy):
    code = f"import sys; sys.path.insert(0, {ROOT!r})\nimport distrun; distrun.__version__ = '0.0.7'\n"
    python = Path(wrapper(tmp_path, code))
    if script:
        python.write_text(f'#!/bin/sh\necho "ModuleNotFoundError: No module named {script}" >&2; exit 1\n')
    elif script is not None:
        python.unlink()
    found = failure(doctor("-H", "alpha", "--python", str(python), status=1), "alpha", step)
    assert text in found["text"]
    assert remedy in found["remedy"]


def test_a_clock_that_is_ahead_another_python_and_a_limited_address_space_are_warnings(doctor, tmp_path):
    code = (
        "import time, platform, resource\n"
        "now = time.time\n"
        "time.time = lambda: now() + 3600\n"
        "platform.python_version = lambda: '3.99.0'\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))\n"
    )
    report = doctor("-H", "alpha", "--python", wrapper(tmp_path, code))
    found = steps(report, "alpha")
    for step, text in (("python", "3.99.0"), ("clock", "3.6e+03 s ahead"), ("machine", "limited to 64 GiB")):
        assert found[step]["status"] == "warning"
        assert text in found[step]["text"]
        assert found[step]["remedy"]
        assert found[step]["command"]


def test_what_a_login_prints_does_no_harm(doctor, tmp_path):
    doctor("-H", "alpha", "--python", wrapper(tmp_path, "print('Welcome!')"))


@pytest.mark.gate
def test_hosts_behind_a_jump_host(doctor, home, alpha, network):
    jump = "Host alpha\n  ProxyJump beta\n"
    home.config.write_text(jump + home.config.read_text())
    report = doctor("-H", "alpha")
    assert steps(report, "alpha")["tcp"]["text"] == f"{alpha.address} port 22 through beta"
    bastion = f"Host alpha\n  ProxyJump bastion\nHost bastion\n  HostName {network.nobody}\n  ConnectTimeout 1\n"
    home.config.write_text(bastion + home.config.read_text())
    report = doctor("-H", "alpha", status=1)
    found = failure(report, "alpha", "tcp")
    assert "its jump host bastion" in found["text"]


def test_a_network_that_a_host_does_not_have(doctor, alpha):
    report = doctor("-H", "alpha,beta", "--network", "ib0", status=1)
    found = steps(report, "alpha")["network"]
    assert found["status"] == "failed"
    assert f"eth0 ({alpha.address}/24)" in found["remedy"]
    assert steps(report, "alpha")["software"]["status"] == "ok"
    report = doctor("-H", "alpha,beta", "--network", "eth0")


def test_a_machine_under_two_names_fails_with_both(doctor, home, alpha):
    home.config.write_text(f"Host twin\n  HostName {alpha.address}\n" + home.config.read_text())
    report = doctor("-H", "alpha,beta,twin", status=1)
    assert steps(report, "alpha")["machine"]["status"] == "ok"
    found = steps(report, "twin")["machine"]
    assert found["status"] == "failed"
    assert found["text"] == "it is the same machine as alpha, and their ranks would use the same GPUs"
    assert found["remedy"] == "list it once, as alpha, with the slots of both"
    assert {link["from"] for link in report["links"]} == {"alpha", "beta"}


@pytest.mark.gate
def test_a_slow_link_is_called_out_in_its_direction(doctor, shape, alpha):
    shape(alpha, "rate 100mbit burst 256kb latency 50ms")
    report = doctor("-H", "alpha,beta", "--network", "10.231.0.0/16")
    there, back = report["links"]
    assert (there["from"], there["to"]) == ("alpha", "beta")
    assert there["status"] == "warning"
    assert 0.05e9 < there["bytes_per_s"] * 8 < 0.12e9
    assert "too little for training, where an allreduce of 100 MB would take " in there["text"]
    assert "--network" in there["remedy"]
    assert "iperf3" in there["command"]
    assert back["bytes_per_s"] > 2 * there["bytes_per_s"]
    assert report["hosts"][0]["status"] == "ok"


@pytest.fixture
def firewall(alpha, beta) -> Iterator[None]:
    """Drop packets between alpha and beta; the launcher reaches both."""
    routes = [
        (one, f"{address}/{bits}")
        for one, other in ((alpha, beta), (beta, alpha))
        for address, bits in ((other.address, 32), (other.address6, 128))
    ]
    for host, place in routes:
        host.call("ip", "route", "add", "blackhole", place)
    yield
    for host, place in routes:
        host.call("ip", "route", "del", "blackhole", place)


@pytest.mark.usefixtures("firewall")
def test_hosts_that_cannot_talk_to_each_other_are_named_with_their_addresses(doctor, alpha, beta):
    report = doctor("-H", "alpha,beta,localhost", status=1)
    failures = [link for link in report["links"] if link["status"] == "failed"]
    assert [(link["from"], link["to"]) for link in failures] == [("alpha", "beta"), ("beta", "alpha")]
    failed = failures[1]
    assert f"beta ({beta.address} or {beta.address6}) cannot connect to alpha at {alpha.address} (" in failed["text"]
    assert "--network" in failed["remedy"]
    assert failed["command"] == f"ssh -o BatchMode=yes root@beta 'ping -c 3 {alpha.address}'"
    assert len(report["links"]) == 6
    assert "beta cannot talk to alpha" in report["summary"]


def link(report, source, target):
    """Return the link from one host to another."""
    (found,) = (item for item in report["links"] if (item["from"], item["to"]) == (source, target))
    return found


@pytest.mark.parametrize("hosts", ["alpha,beta", "beta,alpha"])
def test_a_host_that_cannot_connect_to_another_is_found_in_whatever_order_they_are_listed(
    doctor, drop, alpha, beta, hosts
):
    drop(alpha, beta, "--syn")
    report = doctor("-H", hosts, status=1)
    failed = link(report, "alpha", "beta")
    assert failed["status"] == "failed"
    assert f"alpha ({alpha.address} or {alpha.address6}) cannot connect to beta at {beta.address} (" in failed["text"]
    assert "though beta can connect to alpha: new connections are dropped in this direction only" in failed["text"]
    assert link(report, "beta", "alpha")["status"] != "failed", link(report, "beta", "alpha")["text"]


def test_a_link_that_loses_packets_is_named_with_their_share_in_its_direction(doctor, drop, alpha, beta):
    drop(alpha, beta, "-m", "statistic", "--mode", "nth", "--every", "3", "--packet", "0")
    report = doctor("-H", "alpha,beta", "--network", "10.231.0.0/16")
    there = link(report, "alpha", "beta")
    assert there["status"] == "warning"
    assert "packets are lost on the way" in there["text"]
    assert 0.7 / 3 < there["packets_lost"] / there["packets_sent"] < 1.4 / 3
    assert "ip -s link" in there["remedy"]
    assert "lost" not in link(report, "beta", "alpha")["text"]


def test_a_link_that_loses_packets_in_both_directions_is_named_in_both(doctor, drop, alpha, beta):
    for one, other in ((alpha, beta), (beta, alpha)):
        drop(one, other, "-m", "statistic", "--mode", "nth", "--every", "10", "--packet", "0")
    report = doctor("-H", "alpha,beta")
    for found in report["links"]:
        assert found["status"] == "warning"
        assert "packets are lost on the way" in found["text"]


@pytest.mark.gate
def test_a_link_that_loses_large_packets_is_told_with_the_size_that_passes_and_the_remedy_helps(
    doctor, drop, alpha, beta
):
    drop(alpha, beta, "-m", "length", "--length", "1400:")
    report = doctor("-H", "alpha,beta", "--network", "10.231.0.0/16", status=1)
    there = link(report, "alpha", "beta")
    assert there["status"] == "failed"
    assert there["largest_packet"] == 1399
    assert "large packets are lost on the way, those of more than 1399 bytes of up to 1500" in there["text"]
    assert there["command"] == f"ssh -o BatchMode=yes root@alpha 'ping -c 3 -M do -s 1472 {beta.address}'"
    assert link(report, "beta", "alpha")["status"] != "failed", link(report, "beta", "alpha")["text"]
    assert "ip link set dev eth0 mtu 1399" in there["remedy"]
    change = ("ip", "link", "set", "dev", "eth0", "mtu")
    alpha.call(*change, "1399")
    try:
        report = doctor("-H", "alpha,beta", "--network", "10.231.0.0/16")
    finally:
        alpha.call(*change, "1500")
    assert link(report, "alpha", "beta")["bytes_per_s"] > 0
    assert link(report, "alpha", "beta")["largest_packet"] is None


def test_a_host_that_is_cut_off_is_given_up_in_time(distrun, alpha):
    with alpha.cut_off():
        # Beta has to answer within that time.
        job = distrun("doctor", "--json", "-H", "alpha,beta", "--start-timeout", "8")
        job.ended(1)
    report = json.loads(job.stdout.data)
    failure(report, "alpha", "tcp")
    assert steps(report, "beta")["clock"]["status"] == "ok"


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.gate)]
)
def test_a_doctor_that_is_interrupted_leaves_nothing_behind(distrun, alpha, tmp_path, signum, status):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = (
        "import importlib.metadata, time\n"
        f"importlib.metadata.version = lambda name: (open({str(ready)!r}, 'w').close(), time.sleep(1000))\n"
    )
    job = distrun("doctor", "-H", "alpha,localhost", "--python", wrapper(tmp_path, code))
    reader = os.open(ready, os.O_RDONLY | os.O_NONBLOCK)
    opened = select.poll()
    opened.register(reader, 0)  # only POLLHUP, which comes when the writer has been there
    assert opened.poll(1000 * DEADLINE), "the probe on alpha has not come to the middle of its answer"
    os.close(reader)
    job.process.send_signal(signum)
    assert job.process.wait(DEADLINE) == status
    alpha.assert_gone()
    assert psutil.wait_procs(job.family(), timeout=DEADLINE)[1] == []


def test_garbage_on_the_command_line_is_a_usage_error(distrun):
    said = distrun("doctor", "--network", "a/b").ended(2)
    assert b"neither an interface nor a subnet" in said
    distrun("doctor", "--no-such-flag").ended(2)


def test_a_host_that_dies_while_it_is_examined_does_not_stop_the_others(distrun, tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, {ROOT!r})
from distrun.tools.doctor import machine_facts
if os.uname().nodename == "alpha":
    machine_facts.gather = lambda: os._exit(3)
"""
    job = distrun("doctor", "--json", "-H", "alpha,beta", "--python", wrapper(tmp_path, code))
    assert job.wait() == 1, job.stderr.data
    report = json.loads(job.stdout.data)
    found = failure(report, "alpha", "machine")
    assert "the program there has ended" in found["text"]
    assert steps(report, "beta")["software"]["status"] == "ok"
    assert report["links"] == []
