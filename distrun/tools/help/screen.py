"""The page that `distrun --help` prints, of 80 columns and 40 lines at most."""

from __future__ import annotations

import textwrap

from distrun.tools.help.groups import GROUPS

_PAGE = """\
Usage: distrun [OPTIONS] PROGRAM [ARGUMENTS]...      start PROGRAM once per rank
       distrun COMMAND ...                           one of the commands below

  distrun -np 2 python train.py             two ranks on this machine
  distrun -H a:4,b:4 python train.py        four on each of two hosts, over SSH
  distrun --auto -np 2 python train.py      a single-process script, unchanged

Commands (distrun COMMAND --help):
  doctor         Find out why a job does not start, or why the network is slow
  ps, top        List your running jobs; watch one
  logs, stop     Print what a running job writes; end it
  sweep          Try a script with many values of its parameters
  predict        Estimate how fast a job would be on more hosts
  k8s            Print the manifests of a job for Kubernetes, or run it
  agent          Be one host of a job that a cluster manager starts on each host
  completion     Complete commands, options and hosts in bash, zsh, fish
  help           Explain options, or a word of an error message

Most used options:
  -np N               Number of ranks. Default: all slots, a GPU or a core each
  -H a:4,b:4          Hosts, and how many ranks each takes; --hostfile FILE
  -x NAME[=VALUE]     Pass a variable to the ranks
  --wdir DIR          Working directory of the ranks
  --ship DIR          Bring a folder of code to the other hosts
  --auto              Train a plain single-process script on all ranks
  --horovod, --torch-backend    For scripts of Horovod and torch.distributed
  --live              Show what each rank does while the job runs
  --report FILE       Write a page about where the time went
  --elastic           Go on when ranks or hosts fail
  --output-dir DIR    Also write what each rank prints to files
  --timeout S         End the job after S seconds
  --profile NAME      Options from distrun.toml; distrun help settings
  --dry-run           Print the plan and start nothing
  -q, -v              Say less, or more
  --version, -h

All options: distrun help all. A group of them: distrun help GROUP, with one of
{groups}
Flags of horovodrun, mpirun and torchrun: distrun-compat --help
"""


def screen() -> str:
    """Return the page."""
    return _PAGE.format(groups=textwrap.fill(" ".join(GROUPS), 80, initial_indent="  ", subsequent_indent="  "))
