"""The report of what works on this machine."""

from distrun.tools.doctor.build import ATTEMPTS, Attempt, NotThereError, report


def test_what_works_has_a_cross_and_what_does_not_its_reason():
    calls = []

    def works():
        calls.append(1)
        return "1.2"

    def fails():
        raise NotThereError("a long\nreason")

    attempts = [Attempt("Fruit", "apple", works), Attempt("Fruit", "pear", fails), Attempt("Trees", "oak", works)]
    text = report(attempts)
    assert text.splitlines()[1:] == [
        *("", "Available Fruit:", "    [X] apple 1.2", "    [ ] pear: reason"),
        *("", "Available Trees:", "    [X] oak 1.2"),
    ]
    assert calls == [1]  # what serves two entries is tried once
    assert "pear: a long\nreason" in report(attempts, verbose=True)


def test_horovods_groups_are_there():
    groups = {attempt.group for attempt in ATTEMPTS}
    assert {"Frameworks", "Controllers", "Tensor Operations"} <= groups
