"""Host lists, with number ranges in Slurm's notation, and host files: parses text into hosts with their slots. Pure."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace

from distrun.errors import UsageError
from distrun.host.numerals import MOST_SLOTS, whole_number

_ALLOWED = (
    f"allowed are NAME, NAME:SLOTS, USER@NAME:SLOTS and [IPV6]:SLOTS with SLOTS from 1 to {MOST_SLOTS}; "
    "NAME:[0,2] and NAME:4[0,2] also choose GPUs, and node[01-04,07] is five hosts"
)
# worker-1.cluster   worker-1:4   me@10.0.0.7:2   [fe80::1]:8   ::1   worker-1:[0,2]   worker-1:4[0,2]
_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.-]*)@)?"
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[A-Za-z0-9_][\w.-]*)|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*))"
    r"(?::(?P<slots>[^:\[\]]*)(?:\[(?P<gpus>[^\[\]]*)\])?)?"
)
# me@node[01-04,07]-ib:4   but not c:[0,2], whose brackets hold GPUs, nor [fe80::1]:8
_RANGED = re.compile(r"(?P<user>[^@\[\]:]*@)?(?P<names>[^@\[\]:]+\[[^:]*)(?P<rest>:.*)?")
_COMMA = re.compile(r",(?![^\[]*\])")  # a comma outside of brackets
_EQUALS = re.compile(r"\s*=\s*")  # Open MPI allows 'slots = 4'
_SLOTS = ("slots", "cpu", "count")
_LIMITS = ("max_slots", "max-slots", "slots_max")  # on oversubscription in Open MPI, ignored here
_BOM = "\ufeff"  # the byte order mark, which some editors write invisibly at the start of a file
_GPU = re.compile(r"\d+|(?:GPU|MIG)-[\w/-]+", re.ASCII)  # 0   GPU-8a1b7c   MIG-77
_MAX_HOSTS = 1 << 16  # so that a typo does not fill the memory
# gpu[01-04,07]-[0-1]x: names with lists of numbers in brackets
_ELEMENT = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


@dataclass(frozen=True)
class Host:
    """A machine as the user named it."""

    name: str
    slots: int | None = None
    """The number of ranks that it takes. None = not given."""
    user: str | None = None
    """The account for SSH. None = as ~/.ssh/config has it."""
    gpus: tuple[str, ...] = ()
    """The GPUs that its ranks may use, as in CUDA_VISIBLE_DEVICES. Empty = not given."""
    times: int = 1
    """How often it is listed, if no number of slots is given: each time stands for a slot."""

    def __str__(self) -> str:
        return ",".join([self.name] * self.times) if self.slots is None else f"{self.name}:{self.slots}"


def parse_host(text: str) -> Host:
    """Parse one entry of a host list, such as `worker-1:4`.

    Raises:
        UsageError: the text names no host.
    """
    match = _HOST.fullmatch(text)
    if match is None or not _is_ipv6(match["bracketed"] or match["bare"] or "::"):
        raise UsageError(f"{text!r} is not a host: {_ALLOWED}")
    name = match["name"] or match["bracketed"] or match["bare"]
    if name.isdecimal():  # to the resolver, 4 is 0.0.0.4
        raise UsageError(
            f"{text!r} is a number and not a host; GPUs are listed in brackets, as in NAME:[0,{name}]: {_ALLOWED}"
        )
    gpus = () if match["gpus"] is None else _gpus(match["gpus"], text)
    if match["slots"] is None:
        return Host(name, None, match["user"])
    slots = len(gpus) if gpus and not match["slots"] else _slots(match["slots"], text)
    return Host(name, slots, match["user"], gpus)


def parse_host_list(text: str) -> list[Host]:
    """Parse the value of `-H`, such as `localhost:2,worker-1:4,worker-2:[0,2],node[01-04]:8`.

    Raises:
        UsageError: an entry names no host.
    """
    entries = [entry.strip() for entry in _COMMA.split(text.removeprefix(_BOM))]
    if "" in entries:
        what = "has a comma too many" if any(entries) else "names no host"
        raise UsageError(f"the host list {text!r} {what}: give hosts with one comma between them, as in a:4,b:4")
    return merge(host for entry in entries for host in _parse_entry(entry))


def _parse_entry(text: str) -> list[Host]:
    """Parse one entry, which may stand for several hosts: `node[01-04,07]:4`."""
    match = _RANGED.fullmatch(text)
    if match is None:
        return [parse_host(text)]
    return [parse_host(f"{match['user'] or ''}{name}{match['rest'] or ''}") for name in expand(match["names"])]


def parse_hostfile(text: str, file: str = "hostfile") -> list[Host]:
    """Parse the contents of a host file: one `NAME slots=N gpus=0,2` or `NAME:N` per line. `#` starts a comment.

    Raises:
        UsageError: a line cannot be understood, or no line names a host.
    """
    hosts = []
    for number, line in enumerate(text.removeprefix(_BOM).splitlines(), start=1):
        words = _EQUALS.sub("=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            hosts += _parse_line(words)
        except UsageError as error:
            raise UsageError(f"{file}, line {number}: {error}") from None
    if not hosts:
        raise UsageError(f"{file} names no host: give one per line, such as 'worker-1 slots=4'")
    return merge(hosts)


def merge(hosts: Iterable[Host]) -> list[Host]:
    """Add up the slots of hosts that are listed more than once. The order is by first mention.

    Raises:
        UsageError: a host gets too many slots.
    """
    merged: dict[tuple[str, str | None], Host] = {}
    for host in hosts:
        known = merged.setdefault((host.name, host.user), host)
        if known is not host:
            both, times = _added(known, host)
            if both is not None and both > MOST_SLOTS:
                raise UsageError(f"{host.name} has {both} slots in all: give it at most {MOST_SLOTS}")
            gpus = tuple(dict.fromkeys((*known.gpus, *host.gpus)))
            merged[host.name, host.user] = replace(known, slots=both, gpus=gpus, times=times)
    return list(merged.values())


def _added(known: Host, host: Host) -> tuple[int | None, int]:
    """Return `slots` and `times` of a host that is listed twice."""
    if host.slots == 0:
        return known.slots, known.times
    if known.slots is None and host.slots is None:
        return None, known.times + host.times
    return sum(one.times if one.slots is None else one.slots for one in (known, host)), 1


def _parse_line(words: list[str]) -> list[Host]:
    if words[0].endswith(","):
        raise UsageError(f"{words[0]!r} ends with a comma: give one host per line, as in 'a slots=4'")
    hosts = _parse_entry(words[0])
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key in _SLOTS and equals:
            hosts = [replace(host, slots=_slots(value, word)) for host in hosts]
        elif key == "gpus" and equals:
            gpus = _gpus(value, word)
            hosts = [replace(host, gpus=gpus, slots=host.slots or len(gpus)) for host in hosts]
        elif key not in _LIMITS or not equals:
            raise UsageError(
                f"{word!r} is not understood: after the host's name allowed are slots=N, gpus=0,2 and max_slots=N"
            )
    return hosts


def _is_ipv6(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6, text.partition("%")[0])
    except OSError:
        return False
    return True


def _gpus(value: str, text: str) -> tuple[str, ...]:
    gpus = tuple(entry.strip() for entry in value.split(","))
    if not all(map(_GPU.fullmatch, gpus)) or len(set(gpus)) < len(gpus):
        raise UsageError(f"{text!r} names {value!r} as GPUs: allowed are different numbers or UUIDs, as in 0,2")
    return gpus


def _slots(value: str, text: str) -> int:
    slots = whole_number(value, most=MOST_SLOTS)
    if slots is None:
        raise UsageError(f"{text!r} gives {value!r} slots: {_ALLOWED}")
    return slots


def expand(text: str, remedy: str = "correct it") -> list[str]:
    """Return the names in the list `text`: n1, n2, n07, gpu1-0, gpu1-1, ... for `n[1-2,07],gpu[1-2]-[0-1]`.

    Raises:
        UsageError: the text is not such a list.
    """
    elements = _ELEMENT.findall(text)
    if not elements or ",".join(elements) != text:
        raise _bad_list(text, remedy)
    names: list[str] = []
    for element in elements:
        choices = [
            [literal] if literal else _numbers(numbers, text, remedy)
            for literal, numbers in _PART.findall(element.strip())
        ]
        names += itertools.islice(map("".join, itertools.product(*choices)), _MAX_HOSTS + 1 - len(names))
        if len(names) > _MAX_HOSTS:
            raise UsageError(f"the host list {text!r} has more than {_MAX_HOSTS} hosts: give a shorter one with -H")
    return names


def _numbers(text: str, whole: str, remedy: str) -> list[str]:
    """Return the numbers in brackets, such as `01-04,07`, as text. Leading zeros set the width."""
    numbers: list[str] = []
    for word in text.split(","):
        match = _RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last:
            raise _bad_list(whole, remedy)
        width = len(match[1]) if match and match[1].startswith("0") else 0
        last = min(last, first + _MAX_HOSTS)
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers


def _bad_list(text: str, remedy: str) -> UsageError:
    return UsageError(f"{text!r} is not a host list like node[01-04,07],login1: {remedy}")
