"""Where this distrun came from, and so how another host gets the same."""

import pytest

from distrun import __version__
from distrun.runner.system.installation import install_command, requirement

COMMIT = "6bc43880d3a6d1c0ffee00000000000000000000"


@pytest.mark.parametrize(
    ("origin", "what", "remark"),
    [
        (
            {"url": "file:///dist/distrun-0.1.0-py3-none-any.whl", "archive_info": {}},
            *("distrun-0.1.0-py3-none-any.whl", " with a copy of this machine's /dist/distrun-0.1.0-py3-none-any.whl"),
        ),
        (
            {"url": "file:///src/my%20distrun", "dir_info": {"editable": True}},
            *("/src/my distrun", ", a copy of this machine's"),
        ),
        ({"url": "https://example.org/d-0.1.0.whl", "archive_info": {}}, "https://example.org/d-0.1.0.whl", ""),
        (
            {"url": "https://example.org/d.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            *(f"git+https://example.org/d.git@{COMMIT}", ""),
        ),
        ({}, "WHEEL", f", with the wheel of distrun {__version__} that was installed here"),
    ],
)
def test_another_host_gets_what_was_installed_here(tmp_path, origin, what, remark):
    assert requirement(origin, tmp_path) == (what, remark)


def test_a_checkout_that_is_not_installed_is_named_by_its_path(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert requirement({}, tmp_path) == (str(tmp_path), ", a copy of this machine's")


def test_no_index_is_asked_for_a_distrun_that_may_be_another():
    assert install_command("/py").startswith("'/py -m pip install ")
    assert "install distrun=" not in install_command("/py")
