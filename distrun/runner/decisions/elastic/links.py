"""Whose link it is that fails, though no process does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_RANK = re.compile(r"\brank (\d+)\b")


def suspected_host(complaints: Mapping[int, str], hosts: Mapping[int, str]) -> str | None:
    """Return the host that most ranks of other hosts complain of, None if no host stands out.

    Two hosts between which a link is broken complain of each other: then there is nobody to suspect. Where one host has
    lost its links to many, it stands out.

    Args:
        complaints: rank -> why it gave up, in words that name ranks.
        hosts: rank -> host.
    """
    named: Counter[str] = Counter()
    for rank, words in complaints.items():
        ranks = map(int, _RANK.findall(words))
        named.update({hosts[other] for other in ranks if other in hosts} - {hosts[rank]})
    most = max(named.values(), default=0)
    suspected = [host for host, times in named.items() if times == most]
    return suspected[0] if len(suspected) == 1 else None
