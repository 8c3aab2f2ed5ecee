"""The output of trials: their files, and the values in it."""

import pytest

from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tools.sweep import output
from distrun.tools.sweep.output import Metric, TrialOutput
from distrun.tools.sweep.policy.trials import Member, Trial


class Kept:
    """The output of one trial."""

    def __init__(self, folder, ranks=1):
        self.measured, self.warnings = [], []
        self.output = TrialOutput(folder, Metric("loss"), lambda *found: self.measured.append(found), self.warn)
        self.trial = Trial(0, {}, members=tuple(Member(rank, 10 + rank, "a", rank) for rank in range(ranks)))
        self.output.begin(self.trial)
        self.path = folder / "trial-0.log"

    def warn(self, text):
        self.warnings.append(text)

    def take(self, *payloads, rank=0, kind=FrameKind.STDOUT):
        for payload in payloads:
            self.output.take(Frame(kind, 10 + rank, payload))

    def end(self):
        for member in self.trial.members:
            self.output.exited(member.process)
        self.output.end(self.trial)


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


def test_lines_of_ranks_are_marked_and_their_halves_are_joined(tmp_path):
    kept = Kept(tmp_path, ranks=2)
    kept.take(b"one\ntw", b"o\r", b"\nloss: 0.", b"5")
    kept.take(b"loss: 9\n", rank=1)
    kept.take(b"last\r", rank=1)
    kept.end()
    lines = kept.path.read_bytes().splitlines(keepends=True)
    assert lines == [b"[0] one\n", b"[0] two\r\n", b"[1] loss: 9\n", b"[0] loss: 0.5\n", b"[1] last\r"]
    assert kept.measured == [(10, 0.5)]


def test_a_progress_bar_is_read_while_it_runs(kept):
    kept.take(b"\r10% loss: 3", b"\r20% loss: 2", b"\r30% loss: 1")
    assert kept.measured == [(10, 3.0), (10, 2.0)]
    kept.end()
    assert kept.measured[-1] == (10, 1.0)
    assert kept.path.read_bytes() == b"\r10% loss: 3\r20% loss: 2\r30% loss: 1\n"


@pytest.mark.parametrize("piece", [b"x" * 999, b"loss: 0.123456789 ", b" " * 999 + b"y"])
def test_a_line_without_an_end_is_kept_in_the_file_and_not_in_memory(kept, piece):
    (stream,) = kept.output._streams.values()
    total = 0
    while total < 1 << 20:
        kept.take(piece)
        total += len(piece)
        assert sum(map(len, stream._unfinished.values())) <= output._LONGEST + len(piece)
    kept.end()
    assert kept.path.read_bytes().replace(b"\n", b"") == piece * (total // len(piece))
    assert {value for _, value in kept.measured} <= {0.123456789}  # no number is cut in two


@pytest.mark.parametrize("name", [b"loss", b"val_loss"])
@pytest.mark.parametrize("end", range(1, 11))
def test_a_number_is_read_wherever_a_long_line_is_cut(kept, name, end):
    told = name + b": 0.5 "
    kept.take(b"x" * (output._LONGEST - 1) + b" ", told[:end], told[end:] + b"y", b"z" * output._LONGEST + b"\n")
    kept.end()
    assert {value for _, value in kept.measured} == ({0.5} if name == b"loss" else set())


def test_an_attempt_that_has_lost_its_host_leaves_no_file_open(kept):
    kept.take(b"one\n")
    (first,) = kept.output._streams.values()
    kept.trial.attempts = 2
    kept.trial.members = (Member(0, 11, "b", 0),)
    kept.output.begin(kept.trial)
    assert first.file.closed
    kept.take(b"late\n")
    kept.take(b"two\n", rank=1)
    kept.end()
    assert kept.path.read_bytes() == b"one\ntwo\n"
    assert kept.output._streams == {}


def test_a_trial_whose_file_cannot_be_opened_runs_without_one_and_that_is_said_once(tmp_path):
    kept = Kept(tmp_path / "deleted")
    kept.take(b"loss: 1\n")
    assert kept.output.path(kept.trial) is None
    kept.end()
    assert kept.measured == [(10, 1.0)]
    kept.output.begin(kept.trial)
    kept.end()
    (warning,) = kept.warnings
    assert "No such file or directory" in warning
