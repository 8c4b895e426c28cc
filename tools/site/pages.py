"""Source of the site: a copy of docs/ with pages of other folders, and links that hold in both places.

Markdown links to files of the repository, so that it can be read there. In the site, a link to a page leads to that
page, a link to another file to a copy of it, and a link to a folder is plain text.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tools.site import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ELSEWHERE = {  # pages outside docs/, and their names in the site
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/datasets/README.md": "project/datasets.md",
    "examples/README.md": "examples.md",
}
HOME = {"README.md": "index.md"}  # the site has a first page of its own
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
ADDRESS = re.compile(r"[a-z]+:")


def stage(target: Path) -> None:
    """Write the source of the site into a new folder."""
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    shutil.copy(ROOT / "zipfel/server/page/icon.svg", target / "static")
    names = names_in_site()
    for path, name in names.items():
        page = target / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(with_site_links((ROOT / path).read_text(), path, names, target))
    for name, text in reference.pages().items():
        (target / "reference" / name).write_text(text)


def names_in_site() -> dict[str, str]:
    """Return the name in the site of each page, by its path in the repository."""
    own = {page.relative_to(ROOT).as_posix(): page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))}
    return own | {path: name for path, name in ELSEWHERE.items() if (ROOT / path).exists()}


def with_site_links(text: str, path: str, names: dict[str, str], target: Path) -> str:
    """Return a page's text with links as the site has them.  target: folder that linked files are copied to."""

    def replaced(link: re.Match[str]) -> str:
        if ADDRESS.match(link["target"]) or not link["target"]:
            return link[0]
        linked = os.path.normpath(Path(path).parent / link["target"])
        place = _place(linked, names, target)
        if place is None:
            return link["text"]
        relative = os.path.relpath(place, Path(names[path]).parent)
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"

    return "".join(LINK.sub(replaced, piece) if prose else piece for piece, prose in pieces(text))


def _place(linked: str, names: dict[str, str], target: Path) -> str | None:
    """Return where a file of the repository is in the site; None for a folder without a page."""
    if (ROOT / linked).is_dir():
        return next(
            (names[f"{linked}/{page}"] for page in ("README.md", "index.md") if f"{linked}/{page}" in names), None
        )
    if linked in names or linked in HOME:
        return names.get(linked) or HOME[linked]
    if linked.startswith("docs/"):
        return linked.removeprefix("docs/")
    copy = target / "files" / linked
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / linked, copy)
    return f"files/{linked}"


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a Markdown text, and whether each is prose and not a block of code."""
    end = 0
    for block in FENCE.finditer(text):
        yield text[end : block.start()], True
        yield block[0], False
        end = block.end()
    yield text[end:], True
