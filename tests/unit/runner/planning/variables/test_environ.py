"""The environment of ranks: variables that they inherit, that are kept from them, and that -x adds."""

import os
import sys

import pytest

from distrun.contract import horovod
from distrun.errors import UsageError
from distrun.runner.planning.variables.environ import (
    complete_on_host,
    forwarded_variables,
    inherited_variables,
    requested_variables,
    search_path,
    thread_variables,
)


def test_the_identity_of_an_outer_launch_is_not_inherited():
    stale = ["RANK", "DISTRUN_KEY", "DISTRUN_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID", "PMIX_RANK"]
    kept = {"PATH": "/bin", "DISTRUN_STALL_WARNING": "5", "NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "1", "MY_RANK": "2"}
    assert inherited_variables({**dict.fromkeys(stale, "1"), **kept}) == kept


def test_a_variable_is_set_taken_or_matched_by_a_pattern():
    environ = {"A": "1", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    variables, notes = requested_variables(["A", "B=x=y", "EMPTY=", "NCCL_*"], environ)
    assert variables == {"A": "1", "B": "x=y", "EMPTY": "", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    assert notes == []


def test_a_variable_that_does_not_exist_is_noted_and_no_error():
    variables, notes = requested_variables(["NOPE"], {})
    assert variables == {}
    assert "NOPE" in notes[0]


@pytest.mark.parametrize("spec", ["", "=3", "1A=3", "A B", "A-*=3", "a b=3"])
def test_what_names_no_variable_is_quoted_with_what_is_allowed(spec):
    with pytest.raises(UsageError, match="allowed are NAME") as error:
        requested_variables([spec], {})
    assert repr(spec) in str(error.value)


def test_what_goes_to_other_hosts_unasked():
    environ = {"PYTHONPATH": "/src", "PATH": "/bin", "DISTRUN_STALL_WARNING": "5", "TOKEN": "x"}
    assert forwarded_variables(environ) == {"PYTHONPATH": "/src", "DISTRUN_STALL_WARNING": "5"}


def test_in_horovods_mode_its_variables_go_to_other_hosts_too():
    environ = {"DISTRUN_HOROVOD": "1", "HOROVOD_LOG_LEVEL": "info", "TOKEN": "x"}
    assert forwarded_variables(environ) == {"DISTRUN_HOROVOD": "1", "HOROVOD_LOG_LEVEL": "info"}
    assert forwarded_variables({"HOROVOD_LOG_LEVEL": "info"}) == {}


def test_in_horovods_mode_a_host_finds_its_own_copy_of_the_package():
    planned = {"DISTRUN_HOROVOD": "1", "PYTHONPATH": "/src", "OMP_NUM_THREADS": "3"}
    assert complete_on_host(planned, {}, cores=8, ranks=2)["PYTHONPATH"] == f"{horovod.FOLDER}:/src"
    del planned["DISTRUN_HOROVOD"]
    assert complete_on_host(planned, {}, cores=8, ranks=2)["PYTHONPATH"] == "/src"


def test_a_host_completes_the_plan_with_its_own_login():
    login = {"HOME": "/home/me", "PATH": "/bin", "RANK": "3", "A": "theirs"}
    environ = complete_on_host({"A": "ours", "OMP_NUM_THREADS": "auto"}, login, cores=8, ranks=2)
    assert environ["HOME"] == "/home/me"
    assert environ["A"] == "ours"
    assert environ["OMP_NUM_THREADS"] == "4"
    assert "RANK" not in environ
    assert os.path.dirname(sys.executable) in environ["PATH"].split(":")


def test_a_thread_count_of_the_login_stands_and_one_of_the_plan_wins():
    login = {"OMP_NUM_THREADS": "7"}
    assert complete_on_host({"OMP_NUM_THREADS": "auto"}, login, 8, 2)["OMP_NUM_THREADS"] == "7"
    assert complete_on_host({"OMP_NUM_THREADS": "3"}, login, 8, 2)["OMP_NUM_THREADS"] == "3"


def test_a_path_the_user_exports_stands():
    assert complete_on_host({"PATH": "/mine"}, {"PATH": "/bin"}, 8, 2)["PATH"] == "/mine"


@pytest.mark.parametrize(
    ("prefix", "path", "expected"),
    [
        ("/venv", "/bin:/venv/bin", "/venv/bin:/bin:/venv/bin"),
        ("/usr", "/local/bin:/venv/bin", "/local/bin:/venv/bin"),
        ("/usr", "/bin", "/venv/bin:/bin"),
    ],
    ids=["virtual environment", "known", "unknown"],
)
def test_python_is_the_one_of_the_agent(monkeypatch, prefix, path, expected):
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert search_path(path) == expected


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(16, 4, "4"), (2, 2, "1"), (2, 32, "1"), (7, 2, "3")])
def test_ranks_share_the_cores_of_their_host_unless_the_user_sets_a_thread_count(cores, ranks, expected):
    assert thread_variables({}, cores, ranks) == {"OMP_NUM_THREADS": expected}
    assert thread_variables({"OMP_NUM_THREADS": "3"}, cores, ranks) == {}
