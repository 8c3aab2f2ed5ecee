"""`python -m distrun.runner.agent`: an agent that exchanges frames on its stdin and stdout."""

from __future__ import annotations

import os
import signal
import sys

from distrun.runner.agent.agent import Agent
from distrun.runner.system import descendants


def main() -> None:
    """Run an agent until the launcher is done."""
    # The program that started the launcher may have blocked signals. With SIGCHLD blocked, the agent would wait for
    # ever, and ranks inherit the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    descendants.set_subreaper()
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not get among the frames
    commands = os.dup(sys.stdin.fileno())
    Agent(commands, reports).run()


if __name__ == "__main__":
    main()
