"""Measure `distrun --auto`: run the situations in one process and on several ranks, and print a table of verdicts.

    python tests/frameworks/auto/situations/run.py [--only PATTERN] [--ranks 2,3] [--rehearse | --cuda]
        [--json FILE] [--faults] [--list]

- `--only PATTERN`: those whose `group/name`, kind or truth matches the regular expression.
- `--ranks 2,3`: the numbers of ranks, besides one process.
- `--json FILE`: writes a line for each situation as soon as it is known; situations that have one there already, of the
  same script and ranks, are not run again unless `--again` is given. So a long run may be made in pieces.
- `--rehearse`: the first steps are rehearsed, as on GPUs, and none is tried later.
- `--cuda`: models and batches are on the GPU, which the ranks share.
- `--faults`: the table has the faults only.
- `--list` prints the situations without running any, `--script NAME` the script of one.

The table is Markdown: a line for each situation, then the sums. `catalogue` says what a situation is and what its truth
means, `forks` how it runs, `verdicts` how it is judged:

- *ok*: the weights of one process within rounding (`same`), figures within 20 % where chance has a part (`random`), or
  a refusal where the truth is `cross`.
- *wrong*: it has ended with status 0 and has other weights.
- *crash*, *hang*: another end than a refusal; no end within five minutes.
- *refused*: a refusal though it could run.
- *broken*: the script itself fails in one process, so the situation has to be corrected.

One situation runs at a time. A situation takes about one processor second with torch, and ten with Keras.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # not a package: there is none in tests

from catalogue import Situation, on_cuda, situations
from forks import variables
from verdicts import verdict

JUDGED = ("ok", "refused", "wrong", "crash", "hang", "broken")


class Servers:
    """A process for each backend that has imported it, started when it is needed first."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._running: tuple[str, subprocess.Popen[str]] | None = None

    def outcomes(self, situation: Situation, sizes: Sequence[int]) -> list[dict[str, Any]]:
        """Run a situation on each number of ranks; 1 is a plain process."""
        server = self._server(situation.backend)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({"script": situation.script, "sizes": list(sizes)}) + "\n")
        server.stdin.flush()
        return [json.loads(server.stdout.readline()) for _ in sizes]

    def _server(self, backend: str) -> subprocess.Popen[str]:
        if self._running is None or self._running[0] != backend:
            self.close()
            command = [sys.executable, str(Path(__file__).with_name("forks.py")), backend, *self._options]
            environ = variables(backend, uses_gpu="cuda" in self._options)
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._running = backend, subprocess.Popen(command, env=environ, **pipes)
        return self._running[1]

    def close(self) -> None:
        """End the server that runs."""
        if self._running is not None:
            self._running[1].communicate()
            self._running = None


def measured(
    chosen: Sequence[Situation], sizes: Sequence[int], known: dict[str, Any], *options: str
) -> Iterator[dict[str, Any]]:
    """Run situations, and yield a record of each: its facts, and by the number of ranks its verdicts.

    Args:
        chosen: the situations.
        sizes: numbers of ranks.
        known: records of earlier runs by `key`; where there is one, that is yielded.
        options: of `forks`.
    """
    servers = Servers(*options)
    try:
        for situation in chosen:
            found = known.get(key(situation, sizes)) or _measure(servers, situation, sizes)
            yield {**found, "group": situation.group, "kind": situation.kind}
    finally:
        servers.close()


def _measure(servers: Servers, situation: Situation, sizes: Sequence[int]) -> dict[str, Any]:
    plain, *others = servers.outcomes(situation, [1, *sizes])
    verdicts = {str(each["size"]): verdict(situation.truth, plain, each, situation.tolerance) for each in others}
    return {
        "key": key(situation, sizes),
        "group": situation.group,
        "name": situation.name,
        "kind": situation.kind,
        "truth": situation.truth,
        "verdicts": {size: each.word for size, each in verdicts.items()},
        "details": {size: each.detail for size, each in verdicts.items()},
        "judged": {size: each.judged(situation.truth) for size, each in verdicts.items()},
        "seconds": round(sum(each["seconds"] for each in [plain, *others]), 2),
    }


def key(situation: Situation, sizes: Sequence[int]) -> str:
    """Return a hash of what a record depends on: the situation with its script, and the numbers of ranks."""
    facts = situation.name, situation.truth, situation.backend, situation.tolerance, situation.script, tuple(sizes)
    return hashlib.sha256(str(facts).encode()).hexdigest()[:16]


def table(records: Sequence[dict[str, Any]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table of Markdown, and of the tables of the sums."""
    heads = [f"on {size}" for size in sizes]
    yield f"| {' | '.join(['kind', 'situation', 'truth', *heads, 'judged', 'detail'])} |"
    yield "| --- " * (5 + len(sizes)) + "|"
    for each in records:
        words = [each["verdicts"][str(size)] for size in sizes]
        judged = "/".join(dict.fromkeys(each["judged"].values()))
        detail = " / ".join(dict.fromkeys(each["details"].values())).replace("|", "\\|")[:160]
        yield f"| {' | '.join([each['kind'], each['name'], each['truth'], *words, judged, detail])} |"
    yield ""
    yield from _sums("truth", ("same", "random", "cross"), records, lambda each: each["truth"])
    yield from _sums("kind", list(dict.fromkeys(each["kind"] for each in records)), records, lambda each: each["kind"])
    yield f"{sum(each['seconds'] for each in records) / max(1, len(records)):.2f} processor seconds for each situation."


def _sums(title: str, rows: Sequence[str], records: Sequence[dict[str, Any]], of: Any) -> Iterator[str]:
    """Yield the lines of a table of how situations are judged; the worst verdict of all numbers of ranks counts."""
    yield f"| {title} | situations | {' | '.join(JUDGED)} |"
    yield "| --- " + "| ---: " * (1 + len(JUDGED)) + "|"
    for row in (*rows, "all"):
        counts = Counter(worst(each) for each in records if row in (of(each), "all"))
        yield f"| {row} | {counts.total()} | {' | '.join(str(counts[each] or '') for each in JUDGED)} |"
    yield ""


def worst(record: dict[str, Any]) -> str:
    """Return how a situation is judged: as on the number of ranks where that is worst."""
    return str(max(record["judged"].values(), key=JUDGED.index))


def main() -> int:
    """Run what the command line asks for; return 1 if there is a fault that is no refusal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", default="2,3")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--rehearse", dest="options", action="append_const", const="rehearse", default=[])
    parser.add_argument("--cuda", dest="options", action="append_const", const="cuda")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--script")
    options = parser.parse_args()
    every = situations()
    if options.script:
        print(next(each.script for each in every if each.name == options.script), end="")
        return 0
    matches = re.compile(options.only).search
    chosen = [each for each in every if any(map(matches, (str(each), each.kind, each.truth)))]
    if "cuda" in options.options:
        chosen = [moved for each in chosen if each.backend == "torch" and (moved := on_cuda(each))]
    chosen.sort(key=lambda each: each.backend, reverse=True)  # torch first
    if options.list:
        print(*(f"{each} | {each.kind} | {each.truth} | {each.why}" for each in chosen), sep="\n")
        return 0
    sizes = [int(size) for size in options.ranks.split(",")]
    lines = options.json.read_text().splitlines() if options.json and options.json.exists() else []
    known = {} if options.again else {record["key"]: record for record in map(json.loads, lines)}
    records = []
    for record in measured(chosen, sizes, known, *options.options):
        records.append(record)
        if options.json and record["key"] not in known:
            with options.json.open("a") as file:
                file.write(json.dumps(record) + "\n")
        print(f"{len(records)}/{len(chosen)} {record['name']}: {worst(record)}", file=sys.stderr)
    shown = [each for each in records if worst(each) != "ok"] if options.faults else records
    print(*table(shown, sizes), sep="\n")
    return int(any(worst(each) not in ("ok", "refused") for each in records))


if __name__ == "__main__":
    sys.exit(main())
