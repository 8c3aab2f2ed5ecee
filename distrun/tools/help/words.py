"""Explanations of words in error messages, and remedies, for `distrun help WORD`."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """One thing that messages speak of."""

    names: tuple[str, ...]
    """The words, in lower case, as messages have them and as people ask for them."""
    text: str
    page: str
    """The page of the manual, in docs/."""


WORDS = (
    Word(
        ("stall", "has waited for", "not by rank", "hang"),
        "Some ranks have submitted an operation that others have not. The warning comes after --stall-warning seconds "
        "(60) and names the ranks that are missing and where in the script each is. With --stall-timeout S the "
        "operation fails after S seconds, with StallError; by default it waits forever.",
        "when-it-fails.md#ranks-that-do-not-come",
    ),
    Word(
        ("unequal", "neither will come", "uneven", "has left"),
        "One rank has ended, or has more batches than another. Give each as many (distrun.data divides data evenly), "
        "or call distrun.join() on each at the end of its data. A rank that has left because it failed is named in the "
        "failure report, the last lines of distrun.",
        "when-it-fails.md#unequal-numbers-of-steps",
    ),
    Word(
        ("host key", "known_hosts", "ssh-keyscan"),
        "SSH shows a key by which it is recognised. One that is not in ~/.ssh/known_hosts is refused, with the command "
        "that accepts it; --ssh-accept-new accepts those of hosts never seen before. A key that has changed may be a "
        "new installation, or another machine that pretends to be the host: ask who runs it.",
        "several-hosts.md#over-ssh",
    ),
    Word(
        ("login", "permission denied", "identity", "authentication", "ssh"),
        "distrun logs in to other hosts by SSH with keys or an agent, as ~/.ssh/config says; --ssh-identity-file FILE, "
        "--ssh-port PORT and user@host in -H come before it. distrun doctor -H a,b tries each host and names the "
        "remedy.",
        "several-hosts.md#over-ssh",
    ),
    Word(
        ("no module named", "modulenotfounderror", "module not found", "import"),
        "The Python that runs there lacks a package or your code. --ship DIR brings code to other hosts, "
        "--bootstrap=REQUIREMENTS makes an environment there, --python PATH chooses another Python. For 'horovod', "
        "give --horovod.",
        "bare-hosts.md",
    ),
    Word(
        ("slot", "more ranks than", "oversubscribe"),
        "A slot is room for one rank. A host that is listed without a number has one each time it is listed. Give "
        "numbers, as in -H a:4,b:4, a smaller -np, or --oversubscribe.",
        "launching.md#how-many-ranks-and-where",
    ),
    Word(
        ("disagree", "mismatch"),
        "Collectives are matched by name, and the ranks asked for different shapes, types or operations under one. The "
        "message has the place in the code of each. The job can go on after MismatchError.",
        "when-it-fails.md#ranks-that-disagree",
    ),
    Word(
        ("before it joined", "init()", "start-timeout", "have not come"),
        "All ranks have to call distrun.init(). One that ends before is named within a second where distrun's agents "
        "start the ranks; elsewhere the others wait for --start-timeout seconds (60).",
        "when-it-fails.md#ranks-that-do-not-come",
    ),
    Word(
        ("aborted", "jobaborted", "is gone", "failure report"),
        "A rank is gone, so no operation can complete any more. The last lines of distrun say which failed first, how "
        "it ended and what it wrote last; all other errors are consequences. --elastic lets a job go on.",
        "when-it-fails.md#a-rank-that-fails",
    ),
    Word(
        ("keepalive", "silent", "silence", "host was lost"),
        "A host that sends nothing for --keepalive seconds (15) counts as gone, and its ranks end. Raise it where the "
        "network is cut for longer; 0 means never.",
        "when-it-fails.md#hosts-that-are-gone",
    ),
    Word(
        ("unacknowledged", "black hole", "mtu", "sent again", "packet"),
        "The network loses what ranks send: all of it, some packets, or only large ones (an MTU black hole). distrun "
        "doctor -H a,b finds out which, and what to do.",
        "when-it-fails.md#the-network-between-hosts",
    ),
    Word(
        ("firewall", "port", "cannot connect", "refused"),
        "Every host must reach every other over TCP, at any port, or at those of --ports FIRST-LAST, of which two per "
        "host and two per rank are needed. distrun doctor -H a,b tries both directions.",
        "several-hosts.md#the-network",
    ),
    Word(
        ("exit status", "exit code", "exited with code", "status 124", "127", "126"),
        "0: every rank ended with 0. Else the status of the first rank that failed, 128 + n for signal n. 1: a host "
        "was lost, or the launcher failed. 2: the command line is wrong, or a host cannot be used. 124: --timeout. 126 "
        "and 127: the command cannot be executed, or does not exist. 130, 143: Ctrl-C or SIGTERM.",
        "when-it-fails.md#exit-statuses",
    ),
    Word(
        ("out of memory", "oom", "killed", "signal 9", "sigkill"),
        "A rank that the kernel killed because memory ran out is reported so. Start fewer ranks on a host (-np, "
        "-H a:2), or take smaller batches. Signal 9 without that comes from elsewhere: a scheduler's limit, or a "
        "person.",
        "when-it-fails.md#a-rank-that-fails",
    ),
    Word(
        ("gpu", "share-gpus", "cuda"),
        "By default each rank of a host has a GPU of its own. -H 'a:[0,2]' chooses GPUs, --share-gpus lets ranks share "
        "them, and distrun doctor --gpu examines them.",
        "gpus.md",
    ),
    Word(
        ("key", "distrun_key", "secret"),
        "Processes of a job know each other by a secret, DISTRUN_KEY. distrun makes one for each job; launchers on "
        "every node and agents that a cluster manager starts are given one.",
        "settings.md#keys",
    ),
    Word(
        ("elastic", "generation", "cooldown", "max-restarts"),
        "With --elastic a job goes on when ranks or hosts fail or come. It gives up after --max-restarts failures "
        "within --restart-window seconds, or when there are fewer than --min-np ranks for --elastic-timeout seconds.",
        "elastic.md",
    ),
    Word(
        ("limit", "ulimit", "open files", "shared memory", "address space"),
        "A limit of the system is too low. ulimit -n counts open files and connections, of which a rank has some for "
        "every other; ulimit -v address space, of which each rank maps much for every rank of its host and uses "
        "little. Raise them on each host, in /etc/security/limits.conf for logins.",
        "when-it-fails.md",
    ),
    Word(
        ("did not come", "was not reached", "were not found", "cannot reach", "cannot listen", "rendezvous"),
        "Ranks meet at an address of rank 0's host, and launchers on every node at --rdzv-endpoint. Either some have "
        "not started, which is to be seen in their own output, or the network is in the way: distrun doctor -H a,b "
        "tries each direction, --network chooses another interface.",
        "several-hosts.md#when-it-does-not-start",
    ),
    Word(
        ("munge", "srun"),
        "Inside an allocation of Slurm, distrun starts agents by srun. Ranks that srun starts itself agree on a key "
        "through munge; without it, set DISTRUN_KEY to the same secret on all.",
        "several-hosts.md#in-a-slurm-allocation",
    ),
    Word(
        ("process set", "process_set"),
        "A process set is some of the ranks. All ranks add it, in the same order, and only its own ranks submit "
        "operations to it.",
        "collectives.md#process-sets",
    ),
    Word(
        ("checkpoint",),
        "A checkpoint that is damaged or unfinished is skipped, and the one before is restored. An error while one is "
        "written is raised by the next call.",
        "checkpoints.md#what-it-promises",
    ),
    Word(
        ("distrun.toml", "pyproject", "settings file", "no toml"),
        "distrun.toml, or [tool.distrun] in pyproject.toml, gives options to launches: keys are their names without "
        "dashes, below [profiles.NAME] for --profile NAME. The command line wins; --profile none reads no file.",
        "settings.md#a-settings-file",
    ),
    Word(
        ("slow", "waiting for", "straggler"),
        "--live shows which rank the others wait for and what it does, --report FILE.html the whole job, and distrun "
        "top a job that runs already.",
        "finding-slowness.md",
    ),
)


def explaining(phrase: str) -> list[Word]:
    """Return what messages speak of that a word or a phrase names; the closest only, if there is one."""
    phrase = " ".join(phrase.lower().split())
    exact = [word for word in WORDS if phrase in word.names]
    return exact or [word for word in WORDS if any(name in phrase or phrase in name for name in word.names)]
