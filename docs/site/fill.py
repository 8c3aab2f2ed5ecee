"""Write what the pages of docs/reference have from the source, between two comments: scripts/docs reference

    <!-- reference: distrun.torch -->            the public names of a package
    <!-- reference: distrun top --help -->       the options of a command
    <!-- reference: distrun-compat mpirun -->    the flags of another launcher
    ...
    <!-- /reference -->

A public name without a docstring ends with an error.
"""

from __future__ import annotations

import re
import sys

import command_line
import reference

PAGES = reference.REPOSITORY / "docs" / "reference"

_MARKED = re.compile(r"^<!-- reference: (?P<subject>[^\n]+) -->\n.*?^<!-- /reference -->$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) ", re.MULTILINE)


def filled(text: str) -> str:
    """The text of a page with its parts as the source has them."""

    def part(marked: re.Match[str]) -> str:
        level = len(_HEADING.findall(_MARKED.sub("", text[: marked.start()]))[-1]) + 1
        subject = marked["subject"]
        return f"<!-- reference: {subject} -->\n\n{described(subject, level)}\n\n<!-- /reference -->"

    return _MARKED.sub(part, text)


def described(subject: str, level: int) -> str:
    """The Markdown about a subject, with headings of this level or deeper ones."""
    if subject.endswith(" --help"):
        return command_line.described(subject.removeprefix("distrun").removesuffix("--help").strip(), level)
    if subject.startswith("distrun-compat "):
        return command_line.flags(subject.partition(" ")[2])
    return reference.described(subject, level)


def subjects() -> list[str]:
    """The subjects of all pages."""
    return [marked["subject"] for page in sorted(PAGES.glob("*.md")) for marked in _MARKED.finditer(page.read_text())]


def main() -> None:
    packages = [subject for subject in subjects() if " " not in subject]
    if said := [sentence for package in packages for sentence in reference.complaints(package, packages)]:
        sys.exit("\n".join(said))
    for page in PAGES.glob("*.md"):
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
