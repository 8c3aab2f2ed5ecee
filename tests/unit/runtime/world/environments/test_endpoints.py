"""Where the ranks of several hosts meet, as each environment tells it."""

import socket

import pytest

from distrun.errors import UsageError
from distrun.host import munge
from distrun.runtime.world.environments import detect
from distrun.runtime.world.environments.base import likely_ports
from distrun.runtime.world.environments.slurm import first_host

SECRET = "0123456789abcdef" * 2
SRUN = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_STEP_NODELIST": "node[07-09]"}
TORCHRUN = {"RANK": "1", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
ENV = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("environ", [TORCHRUN, ENV], ids=["torchrun", "env://"])
def test_near_the_master_with_the_users_secret(environ):
    endpoint = detect({**environ, "DISTRUN_KEY": SECRET}).endpoint()
    assert endpoint.addresses == tuple(("node7", port) for port in (29501, 29502, 29503, 29504))
    assert endpoint.key == SECRET.encode()


def test_a_cluster_tells_who_leads_and_the_user_the_secret():
    numbers = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0", "DISTRUN_KEY": SECRET}
    main = {**numbers, "AWS_BATCH_JOB_ID": "17#0", "AWS_BATCH_JOB_NODE_INDEX": "0"}
    other = {**numbers, "AWS_BATCH_JOB_ID": "17#1", "AWS_BATCH_JOB_NODE_INDEX": "1"}
    other["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.12.7"
    expected = [("10.0.12.7", port) for port in likely_ports("AWS Batch.17.1")]
    assert detect(other).endpoint().addresses == tuple(expected)
    assert detect(main).endpoint().addresses == tuple((socket.gethostname(), port) for _, port in expected)
    assert detect(other).endpoint().key == detect(main).endpoint().key == SECRET.encode()
    with pytest.raises(UsageError, match=r"AWS Batch gives its ranks no secret .* set DISTRUN_KEY"):
        detect({**other, "DISTRUN_KEY": ""}).endpoint()


def test_the_last_ports_have_others_below():
    endpoint = detect({**ENV, "MASTER_PORT": "65533", "DISTRUN_KEY": SECRET}).endpoint()
    assert [port for _, port in endpoint.addresses] == [65532, 65531, 65530, 65529]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "set DISTRUN_KEY to the same text on all of them"),
        ({"DISTRUN_KEY": "secret"}, "DISTRUN_KEY has 6 characters: set it to at least 32"),
        ({"DISTRUN_KEY": SECRET, "MASTER_PORT": "0"}, "MASTER_PORT=0 is not a port"),
        ({"DISTRUN_KEY": SECRET, "MASTER_PORT": "65536"}, "MASTER_PORT=65536 is not a port"),
        ({"DISTRUN_KEY": SECRET, "MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
    ],
)
@pytest.mark.parametrize("environ", [TORCHRUN, ENV], ids=["torchrun", "env://"])
def test_a_place_that_is_none_is_refused_without_showing_the_secret(environ, changes, complaint):
    with pytest.raises(UsageError, match=complaint) as error:
        detect({**environ, **changes}).endpoint()
    assert "secret" not in str(error.value).replace("no secret", "")
    assert SECRET not in str(error.value)


def test_slurm_has_the_first_host_of_the_step_and_the_key_by_munge(monkeypatch):
    monkeypatch.setattr(munge, "is_here", lambda: True)
    endpoint = detect(SRUN).endpoint()
    assert [host for host, _ in endpoint.addresses] == ["node07"] * 4
    assert endpoint == detect({**SRUN, "SLURM_PROCID": "2"}).endpoint()
    assert endpoint.addresses != detect({**SRUN, "SLURM_STEP_ID": "4"}).endpoint().addresses
    assert (endpoint.key, endpoint.greeting, endpoint.opener) == (None, munge.new_key, munge.key_of)


def test_a_secret_of_the_user_comes_before_munge(monkeypatch):
    monkeypatch.setattr(munge, "is_here", lambda: True)
    endpoint = detect({**SRUN, "DISTRUN_KEY": SECRET}).endpoint()
    assert (endpoint.key, endpoint.greeting, endpoint.opener) == (SECRET.encode(), None, None)


def test_slurm_without_munge_needs_a_secret(monkeypatch):
    monkeypatch.setattr(munge, "is_here", lambda: False)
    with pytest.raises(UsageError, match="install munge on every host, set DISTRUN_KEY"):
        detect(SRUN).endpoint()


def test_the_hosts_of_the_job_do_where_the_step_does_not_say(monkeypatch):
    monkeypatch.setattr(munge, "is_here", lambda: True)
    environ = {name: value for name, value in SRUN.items() if name != "SLURM_STEP_NODELIST"}
    assert detect({**environ, "SLURM_JOB_NODELIST": "a,b"}).endpoint().addresses[0][0] == "a"
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST is not set"):
        detect(environ).endpoint()


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("node[01-04,07],x", "node01"),
        ("gpu[3,1]-[0-1]s,z", "gpu3-0s"),
        ("r1-n[12]", "r1-n12"),
    ],
)
def test_the_first_of_a_host_list(text, first):
    assert first_host(text) == first


@pytest.mark.parametrize("text", ["", ",a", "a[1", "a[]", "a[x]", "a]"])
def test_what_is_no_host_list_is_refused(text):
    with pytest.raises(UsageError, match="is not a list of hosts"):
        first_host(text)


def test_ports_are_spread_and_allowed():
    ports = {port for step in range(1000) for port in likely_ports(f"17.{step}")}
    assert len(ports) > 3500
    assert min(ports) >= 30000
    assert max(ports) <= 60999
