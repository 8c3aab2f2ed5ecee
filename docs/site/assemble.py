"""Gather the pages of the site in build/docs: docs/, README as the front page, CHANGELOG and the like.

In the repository, links are written as GitHub wants them, relative to the file that they stand in. Here they become
links between pages; a file of the repository that a page links to, such as an example, gets a page that shows it. A
link that leads to no file ends with an error; anchors are checked when the site is built.

A line `::: distrun.torch` stands for the reference of that package. It becomes a section for each public name that is
the package's own, and a list of those that it shares with `distrun`, where they are described. A line
`::: distrun --help` stands for what that command prints. A quotation that begins with "In the repository" tells readers
of the repository that these lines are still to be expanded, and is left out.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import command_line
import reference

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = REPOSITORY / "build" / "docs"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".py": "python", ".cu": "cuda", ".toml": "toml", ".cfg": "ini"}

_LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s:#]+)(?P<anchor>#[^()\s]*)?(?=\))")
_ONLY_IN_REPOSITORY = re.compile(r"^> In the repository(.*\n)+?\n", re.MULTILINE)
_CODE = re.compile(r"^(?P<fence> *```).*?^(?P=fence)|``.+?``|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    sources = [*PAGES, *sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md"))]
    broken: list[str] = []
    for source in sources:
        text = with_links(_ONLY_IN_REPOSITORY.sub("", (REPOSITORY / source).read_text()), source, broken)
        write(page_of(source), command_line.expanded(reference.expanded(text, source, broken)))
    pictures = [path for kind in ("svg", "png") for path in (REPOSITORY / "docs").glob(f"*.{kind}")]
    for asset in [*pictures, *(REPOSITORY / "docs" / "site").glob("*.css")]:
        shutil.copy(asset, TARGET)
    if broken:
        sys.exit("\n".join(broken))


def page_of(path: str) -> str:
    """The page that shows a file of the repository: `launching.md` for docs/launching.md."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}.md"


def with_links(text: str, source: str, broken: list[str]) -> str:
    """The text of a file with its links turned into links between pages. Links to no file are added to `broken`."""

    def rewritten(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        if not (REPOSITORY / path).is_file():
            broken.append(f"{source}: the link to {link['path']} leads to no file")
            return link.group()
        if page_of(path).startswith("repository/"):
            write(page_of(path), listing(path))
        here = posixpath.dirname(page_of(source)) or "."
        return os.path.relpath(page_of(path), here) + (link["anchor"] or "")

    return outside_code(text, lambda prose: _LINK.sub(rewritten, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text, changed wherever it is not code."""
    pieces, end = [], 0
    for code in _CODE.finditer(text):
        pieces += [change(text[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*pieces, change(text[end:])])


def listing(path: str) -> str:
    """A page that shows a file, and that the search passes over."""
    text = (REPOSITORY / path).read_text()
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n`````{language}\n{text}\n`````\n"


def write(page: str, text: str) -> None:
    """Write a page of the site."""
    file = TARGET / page
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


if __name__ == "__main__":
    main()
