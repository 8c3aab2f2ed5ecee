"""Reports of a trial, as far as they need no launcher."""

import pytest

from distrun.contract.elastic.variables import TRIAL
from distrun.errors import UsageError
from distrun.runtime.collectives import trial


class Tensor:
    """A value of a framework that is no single number."""

    def __float__(self):
        raise RuntimeError("value cannot be converted to type double without overflow")

    def __repr__(self):
        return "tensor(1j)"


@pytest.mark.parametrize("value", [Tensor(), 10**400, "small", [1.0], 1j], ids=lambda value: type(value).__name__)
def test_a_value_or_a_step_that_is_no_number_is_refused_in_a_sentence(monkeypatch, value):
    monkeypatch.setenv(TRIAL, "0")
    monkeypatch.setattr(trial, "_trial", trial._Trial(None, True, False))
    for arguments in ((value,), (1.0, value)):
        with pytest.raises(UsageError, match="which is no single number"):
            trial.report(*arguments)
