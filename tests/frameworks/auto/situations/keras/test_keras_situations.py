"""The situations of Keras under `--auto`: none but those known today is wrong, crashes or hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # not a package: there is none in tests

from records import check, groups


@pytest.mark.parametrize("group", groups("keras"))
def test_no_situation_is_wrong_crashes_or_hangs_but_those_known_today(group: str, tmp_path: Path) -> None:
    check(group, tmp_path)
