"""Flags and ~/.ssh/config become routes."""

import pytest

pytest.importorskip("paramiko")

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.ssh_config import SshOptions, SshSettings, read_config

CONFIG = """
Host worker
    HostName 10.0.0.7
    Port 2222
    User me
    IdentityFile ~/keys/one
    ProxyJump gate
Host gate
    HostName gate.example
    IdentityFile /keys/gate
    IdentitiesOnly yes
    UserKnownHostsFile ~/known /etc/known
    ConnectTimeout 3
Host far
    ProxyJump you@first:1022,[fe80::1]
Host *
    ProxyJump none
"""


@pytest.fixture(autouse=True)
def _home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/local")  # paramiko looks there for `~`


def route(host, config=CONFIG, **options):
    name, _, user = host.partition("/")
    return SshSettings(config, SshOptions(**options), "local", "/home/local").route(Host(name, user=user or None))


def test_a_host_is_where_the_configuration_says():
    found = route("worker")
    assert (found.hostname, found.port, found.user) == ("10.0.0.7", 2222, "me")
    assert (found.identities, found.key_name, found.strict) == (("/home/local/keys/one",), "[10.0.0.7]:2222", "yes")
    assert str(found) == "worker (10.0.0.7 port 2222 through gate)"


def test_a_host_the_configuration_does_not_know_is_where_its_name_says():
    found = route("other")
    assert (found.hostname, found.port, found.user, found.identities) == ("other", 22, "local", ())
    assert (found.jump, found.use_agent, found.timeout, str(found)) == (None, True, 10.0, "other")
    assert found.known_hosts[0] == "/home/local/.ssh/known_hosts"


def test_a_jump_host_has_a_route_of_its_own():
    jump = route("worker", port=99, identity="/keys/mine").jump
    assert (jump.hostname, jump.port, jump.user, jump.timeout) == ("gate.example", 22, "local", 3.0)
    assert (jump.identities, jump.default_identities, jump.use_agent) == (("/keys/gate",), False, False)
    assert jump.known_hosts[:2] == ("/home/local/known", "/etc/known")


def test_several_jumps_are_taken_in_order():
    last = route("far").jump
    assert (last.hostname, last.jump.hostname, last.jump.user, last.jump.port) == ("fe80::1", "first", "you", 1022)


def test_a_jump_host_is_not_reached_through_itself():
    found = route("a", "Host *\n  ProxyJump gate\n")
    assert (found.jump.name, found.jump.jump) == ("gate", None)


def test_what_the_command_line_says_wins():
    found = route("worker/you", port=99, identity="/keys/mine", options=("HostName=10.0.0.8", "proxyjump = none"))
    assert (found.hostname, found.port, found.user, found.jump) == ("10.0.0.8", 99, "you", None)
    assert found.identities == ("/keys/mine", "/home/local/keys/one")


@pytest.mark.parametrize(
    ("asked", "flag", "strict"),
    [("ask", False, "yes"), ("ask", True, "accept-new"), ("accept-new", False, "accept-new"), ("no", False, "no")],
)
def test_how_strict_keys_are_checked(asked, flag, strict):
    assert route("a", options=(f"StrictHostKeyChecking={asked}",), accept_new=flag).strict == strict


@pytest.mark.parametrize("option", ["Cipher=x", "HostName", "HostName=", "=x", "ForwardX11=yes"])
def test_an_option_that_is_not_understood_is_refused_with_those_that_are(option):
    with pytest.raises(UsageError, match="ProxyJump") as error:
        route("a", options=(option,))
    assert repr(option) in str(error.value)


@pytest.mark.parametrize("config", ["Port x\n", "Port 70000\n", "ConnectTimeout soon\n", "ProxyJump a b\n", "Host '\n"])
def test_a_configuration_that_makes_no_sense_is_an_error(config):
    with pytest.raises(UsageError):
        route("a", config)


def test_included_files_are_read_in_place(tmp_path):
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    (tmp_path / ".ssh" / "conf.d" / "one").write_text("Host a\n  Port 1\n")
    (tmp_path / ".ssh" / "config").write_text("Host b\n  Include conf.d/*\n  Port 2\nInclude /no/such/file\n")
    system = tmp_path / "ssh_config"
    system.write_text("Port 3\n")
    text = read_config(str(tmp_path), str(system))
    assert [route(name, text).port for name in "abc"] == [1, 2, 3]


def test_files_that_include_each_other_are_an_error(tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Include config\n")
    with pytest.raises(UsageError, match="included by itself"):
        read_config(str(tmp_path))
