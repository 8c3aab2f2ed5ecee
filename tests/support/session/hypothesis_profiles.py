"""Hypothesis in the tiers of tests: in the gate few examples, the same ones each time; otherwise many, at random."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is slow. Fixtures last as long as a test, for all of its examples, and are meant to.
SUPPRESSED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("gate", max_examples=20, derandomize=True, deadline=None, suppress_health_check=SUPPRESSED)
settings.register_profile("full", max_examples=100, deadline=None, suppress_health_check=SUPPRESSED)


def load_profile(is_gate: bool) -> None:
    """Choose the profile; before the tests are imported."""
    settings.load_profile("gate" if is_gate else "full")


def examples(gate: int, full: int) -> settings:
    """Return the settings of a test whose examples are much dearer or cheaper than usual, or hard to hit upon."""
    is_gate = settings.default is settings.get_profile("gate")
    return settings(max_examples=gate if is_gate else full)
