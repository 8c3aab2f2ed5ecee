"""Gather the pages of the site in build/docs: docs/, README as the front page, CHANGELOG and the like.

In the repository, links are written as GitHub wants them, relative to the file that they stand in. Here they become
links between pages. Other files of the repository are linked where it is, at the address in DOCS_REPOSITORY. Without
one, examples get a page, and of links to anything else the text stays. A link that leads to no file ends with an error;
anchors are checked when the site is built.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TARGET = REPOSITORY / "build" / "docs"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
CARDS = REPOSITORY / "docs" / "site" / "cards.md"
LANGUAGES = {".py": "python", ".yaml": "yaml", "": "docker"}

_LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<path>[^()\s:#]+)(?P<anchor>#[^()\s]*)?\)")
_CODE = re.compile(r"^(?P<fence> *```).*?^(?P=fence)|``.+?``|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    paths = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "docs").rglob("*.md") if path.name != CARDS.name]
    sources = [*PAGES, *sorted(str(path) for path in paths)]
    broken: list[str] = []
    for source in sources:
        text = (REPOSITORY / source).read_text()
        if source == "README.md":
            text = with_cards(text)
        write(page_of(source), front_matter(source, text) + with_links(text, source, broken))
    for kind in ("svg", "png", "css"):
        for asset in (REPOSITORY / "docs").rglob(f"*.{kind}"):
            place = TARGET / asset.relative_to(REPOSITORY / "docs")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(asset, place)
    if broken:
        sys.exit("\n".join(broken))


def page_of(path: str) -> str:
    """The page that shows a file of the repository: `launching.md` for docs/launching.md. Empty if none does."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path) or (f"{path}.md" if path.startswith("examples/") else "")


def with_links(text: str, source: str, broken: list[str]) -> str:
    """The text of a file with its links turned into links between pages. Links to no file are added to `broken`."""
    repository = os.environ.get("DOCS_REPOSITORY")

    def rewritten(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["path"]))
        if not (REPOSITORY / path).is_file():
            broken.append(f"{source}: the link to {link['path']} leads to no file")
            return link.group()
        anchor = link["anchor"] or ""
        page = page_of(path)
        if repository and (not page or page.startswith("examples/")):
            return f"[{link['text']}]({repository}/blob/main/{path}{anchor})"
        if not page:
            return link["text"]
        if page.startswith("examples/"):
            write(page, listing(path))
        return f"[{link['text']}]({os.path.relpath(page, posixpath.dirname(page_of(source)) or '.')}{anchor})"

    return outside_code(text, lambda prose: _LINK.sub(rewritten, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text, changed wherever it is not code."""
    pieces: list[str] = []

    def put_aside(code: re.Match[str]) -> str:
        pieces.append(code.group())
        return f"\0{len(pieces) - 1}\0"

    changed = change(_CODE.sub(put_aside, text))
    return re.sub(r"\0(\d+)\0", lambda place: pieces[int(place[1])], changed)


def with_cards(text: str) -> str:
    """README with the cards of the front page before its first heading of the second level."""
    return text.replace("\n## ", f"\n{CARDS.read_text()}\n## ", 1)


def front_matter(source: str, text: str) -> str:
    """Facts about a page for the template: the file that it is made from, and its first sentences."""
    facts = {"source": source, "description": description(text)}
    if source == "README.md":
        facts["title"] = facts["description"].rstrip(".")
    return "---\n{}\n---\n\n".format("\n".join(f"{name}: {json.dumps(value)}" for name, value in facts.items()))


def description(text: str) -> str:
    """The first paragraph without its Markdown, in at most 160 characters."""
    plain = re.sub(r"<!--[^>]*-->|^#.*", "", text, flags=re.MULTILINE).strip().partition("\n\n")[0]
    plain = re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)", r"\1", plain)
    return textwrap.shorten(re.sub(r"[`*>]", "", plain), 160, placeholder=" …")


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
