"""How often the ranks were started again, from the variables of their launcher."""

import pytest

import distrun
from distrun.errors import UsageError

VARIABLES = ("DISTRUN_RESTART", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 0),
        ({"DISTRUN_RESTART": "2", "TORCHELASTIC_RESTART_COUNT": "1"}, 2),
        ({"TORCHELASTIC_RESTART_COUNT": "1", "SLURM_RESTART_COUNT": "5"}, 1),
        ({"SLURM_RESTART_COUNT": "5"}, 5),
        ({"DISTRUN_RESTART": ""}, 0),
    ],
)
def test_the_launchers_own_variable_counts(monkeypatch, environ, count):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert distrun.restart_count() == count


@pytest.mark.parametrize("value", ["-1", "x", "²"])
def test_no_whole_number_is_refused(monkeypatch, value):
    monkeypatch.setenv("DISTRUN_RESTART", value)
    with pytest.raises(UsageError, match=rf"^DISTRUN_RESTART='{value}' is not a whole number >= 0: let the launcher"):
        distrun.restart_count()
