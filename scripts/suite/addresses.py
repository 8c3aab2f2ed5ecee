"""Give the metadata absolute addresses: python scripts/suite/addresses.py https://github.com/OWNER/distrun v0.1.0

An index of packages shows README without the repository around it. The release workflow calls this in its checkout,
because only there is the repository's address known: links and pictures of README become absolute, and pyproject.toml
gets a table of URLs.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_LINK = re.compile(r"(?P<start>!?\[[^\]]*\]\()(?P<path>(?!\w+:|#)[^()\s]+)(?=\))")


def absolute(text: str, repository: str, revision: str) -> str:
    """Return Markdown whose relative links lead to files of the repository at a revision."""

    def address(link: re.Match[str]) -> str:
        kind = "raw" if link["start"].startswith("!") else "blob"
        return f"{link['start']}{repository}/{kind}/{revision}/{link['path']}"

    return _LINK.sub(address, text)


def with_urls(metadata: str, repository: str, revision: str) -> str:
    """Return pyproject.toml with the addresses of the project."""
    urls = {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{revision}/docs/getting-started.md",
        "Changelog": f"{repository}/blob/{revision}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "\n".join(["[project.urls]", *(f'{name} = "{url}"' for name, url in urls.items())])
    return metadata.replace("[project.scripts]\n", f"{table}\n\n[project.scripts]\n", 1)


def main(repository: str, revision: str) -> None:
    """Rewrite README.md and pyproject.toml in place."""
    for name, change in (("README.md", absolute), ("pyproject.toml", with_urls)):
        path = ROOT / name
        path.write_text(change(path.read_text(encoding="utf-8"), repository, revision), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
