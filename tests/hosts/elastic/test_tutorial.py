"""The tutorial's commands on two machines, typed in its order: alpha and beta, of which one is lost."""

from __future__ import annotations

import pytest
from machines.reader import TUTORIAL, Reader, blocks
from shell import kill_all

pytest.importorskip("torch")


@pytest.mark.gate
def test_what_the_tutorial_says_of_two_machines_happens(home, tmp_path, beta):
    def switch_off() -> None:
        beta.cut()
        kill_all(beta.processes())

    environ = {"HOME": str(home.directory), "SSH_AUTH_SOCK": ""}
    reader = Reader(tmp_path, environ, {"ssh beta sudo poweroff": switch_off})
    try:
        reader.follow(blocks(TUTORIAL), ("Two machines", "Lose a machine"))
    finally:
        beta.mend()
        reader.close()
