"""A job's state in a line of text, for logs and for output without a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from distrun.host.ranks import count, list_ranks
from distrun.runner.observation.live.snapshot import Snapshot, TimeShares

_NAMES = {"waiting": "waiting for ranks"}


def sentence(snapshot: Snapshot) -> str:
    """Return the state of a job: `4 ranks, 31.2 steps/s, 998 samples/s; compute 71 %, ... ; rank 3 on h2 costs ...`."""
    parts = [", ".join(rates(snapshot))]
    if (mean := mean_shares(snapshot)) is not None:
        shares = [(_NAMES.get(name, name), share) for name, share in vars(mean).items()]
        parts.append(", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if share >= 0.01))
    parts += [one.sentence for one in snapshot.slow[:3]]
    if not snapshot.slow:
        busy = [rank for rank in snapshot.ranks if rank.doing]
        parts += [f"rank {rank.rank} has been {rank.doing} for {rank.doing_for:.0f} s" for rank in busy[:1]]
    parts.append(silent(snapshot))
    return "; ".join(part for part in parts if part)


def from_script(command: Sequence[str]) -> list[str]:
    """Return the words of a command from its script on, without interpreter, its options and the script's folder."""
    words = [word for word in command if word]
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    if "-m" in words and "python" in words[0] and (module := words.index("-m") + 1) < len(words):
        script = min(script, module) or module
    return [words[script].rpartition("/")[2], *words[script + 1 :]] if words else []


def silent(snapshot: Snapshot) -> str:
    """Return a sentence about the ranks without events, or "" if all ranks have sent some."""
    ranks = [rank.rank for rank in snapshot.ranks if not rank.is_heard]
    return f"nothing heard yet of {list_ranks(ranks)}: ranks tell of themselves from distrun.init() on" if ranks else ""


def rates(snapshot: Snapshot) -> list[str]:
    """Return the number of ranks and, as far as they are known, their speed and the time left."""
    parts = [count(snapshot.size, "rank")]
    if snapshot.status is None and (gone := sum(rank.is_gone for rank in snapshot.ranks)):
        parts[0] += f" ({gone} gone)"
    if (steps := snapshot.steps_per_second) is not None:
        parts.append(f"{number(steps)} steps/s")
    if (samples := snapshot.samples_per_second) is not None:
        parts.append(f"{number(samples)} samples/s")
    if snapshot.seconds_left:
        parts.append(f"{clock(snapshot.seconds_left)} left")
    return parts


def mean_shares(snapshot: Snapshot) -> TimeShares | None:
    """Return the mean of all ranks' shares, or None if none are known."""
    known = [rank.shares for rank in snapshot.ranks if rank.shares is not None]
    if not known:
        return None
    return TimeShares(
        *(sum(values) / len(known) for values in zip(*(vars(one).values() for one in known), strict=True))
    )


def number(value: float) -> str:
    """Return a rate as text: `0.42`, `31.2`, `998`, `12,480`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(value: float) -> str:
    """Return a number of bytes as text: `812 MB`, `3.1 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def clock(seconds: float) -> str:
    """Return a time in seconds as text: `1:28`, `2:03:04`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
