"""A host tells what it lacks before anybody is waited for."""

import importlib.util

import pytest

from distrun.errors import UsageError
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.launch.joined import launch, this_host
from distrun.runner.planning.request import LaunchRequest


@pytest.mark.parametrize("index", [0, 1])
def test_a_host_without_cryptography_says_so(monkeypatch, index):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    endpoint = JoinEndpoint(("127.0.0.1", 1), b"0123456789abcdef" * 2)
    with pytest.raises(UsageError, match=r"^the Python package cryptography.*: pip install cryptography$"):
        launch(
            endpoint, this_host(index, 2, 1), LaunchRequest(("true",)), lambda *_: pytest.fail("it has begun"), print
        )
