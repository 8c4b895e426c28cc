"""The documentation site: links that hold in two places, and reference pages that leave nothing out."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import zipfel
from tools.site import pages, reference
from zipfel.cli.main import COMMANDS, GROUPS
from zipfel.config import Settings
from zipfel.engines import BatchTagger
from zipfel.evaluate import Report
from zipfel.models.base import BUILT_IN, settings_of

NAMES = pages.names_in_site()
INDEX = (pages.DOCS / "index.md").read_text()


def linked(text: str, path: str, target: Path) -> str:
    return pages.with_site_links(text, path, NAMES, target)


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("docs/guide/train.md", "[a](scores.md#files)", "[a](scores.md#files)"),
        ("docs/guide/train.md", "[a](../../CHANGELOG.md)", "[a](../project/changelog.md)"),
        ("docs/guide/train.md", "![a](../images/page.png)", "![a](../images/page.png)"),
        ("docs/guide/train.md", "[`a`](../../zipfel/types.py)", "[`a`](../files/zipfel/types.py)"),
        ("docs/architecture.md", "[a](decisions/)", "[a](decisions/index.md)"),
        ("CHANGELOG.md", "[a](docs/guide/bench.md#how-cost-grows)", "[a](../guide/bench.md#how-cost-grows)"),
        ("CHANGELOG.md", "[a](benchmarks)", "[a](benchmarks.md)"),
        ("CHANGELOG.md", "[a](README.md)", "[a](../index.md)"),
        ("CHANGELOG.md", "the [results](benchmarks/results) of it", "the results of it"),
        ("CHANGELOG.md", "[a](https://example.org/x) and [b](#up)", "[a](https://example.org/x) and [b](#up)"),
        ("CHANGELOG.md", "```\n[a](LICENSE)\n```\n[a](LICENSE)", "```\n[a](LICENSE)\n```\n[a](../files/LICENSE)"),
    ],
)
def test_links_lead_to_the_same_thing_in_the_site(path, link, expected, tmp_path):
    assert linked(link, path, tmp_path) == expected


def test_linked_files_of_the_repository_are_copied(tmp_path):
    linked("[types](../zipfel/types.py)", "docs/glossary.md", tmp_path)
    assert (tmp_path / "files/zipfel/types.py").read_bytes() == (pages.ROOT / "zipfel/types.py").read_bytes()


def listed() -> set[str]:
    """Return the pages that the navigation lists, with those that its patterns match."""
    found = set()
    for page in [pages.DOCS / "index.md", *pages.DOCS.glob("*/index.md")]:
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", page.read_text(), re.M | re.S):
            for line in (line for line in block.splitlines() if line and not line.startswith(":")):
                matches = [*page.parent.glob(f"{line}.md")] if "*" in line else [page.parent / f"{line}.md"]
                found |= {match.relative_to(pages.DOCS).as_posix() for match in matches}
    return found


def test_the_navigation_has_every_page_and_no_other():
    generated = {f"reference/{name}" for name in ("settings.md", "commands.md", "http.md")}
    assert listed() | {"index.md"} == {*NAMES.values()} | generated


def test_every_decision_has_a_number_of_its_own():
    names = sorted(path.name for path in (pages.DOCS / "decisions").glob("[0-9]*.md"))
    assert [name[:3] for name in names] == [f"{number:03}" for number in range(1, len(names) + 1)]
    assert all((pages.DOCS / "decisions" / name).read_text().startswith(f"# {name[:3]}") for name in names)


def test_every_command_and_option_is_in_the_reference():
    text = reference.commands_page()
    for name in COMMANDS:
        assert f"## zipfel {name}" in text
    assert not any(f"## zipfel {name}\n" in text for name in GROUPS)  # their commands are
    assert "## zipfel data convert\n" in text
    train = text.partition("## zipfel train\n")[2].partition("\n## ")[0]
    assert "zipfel train DATA [OPTIONS]" in train
    assert "| `--preset` | Settings to start from: paper, default or fast. (default default) |" in train
    assert "| `--ancestors / --no-ancestors` |" in train
    assert "TOML file of settings; `--set` overrides it." in train  # two hyphens would become a dash
    assert "a file of 'label&lt;TAB>parent' lines" in train


def test_every_setting_is_in_the_reference_with_its_values():
    text = reference.settings_page()
    assert re.findall(r"^## (\w+)$", text, re.M) == [*BUILT_IN]
    glas = text.partition("## glas\n")[2].partition("\n## ")[0]
    heads, *rest = ([cell.strip() for cell in row[1:-1].split(" | ")]
                    for row in glas.splitlines() if row.startswith(("| `", "| setting")))  # fmt: skip
    rows = {name: dict(zip(heads[1:], cells, strict=True)) for name, *cells in rest}
    for preset in ("default", "fast", "paper"):
        settings = settings_of("glas", preset)
        assert rows["`dimension`"][preset] == f"`{settings.dimension}`"
    assert rows["`margin`"]["meaning"] == "c of Eq. (1) (float, at least 0)"
    assert len(rows) == len(vars(settings))


def test_every_route_is_in_the_reference_with_its_body():
    text = reference.http_page()
    assert {"POST /tag", "POST /explain", "GET /labels/{name}", "GET /metrics"} <= {
        *re.findall(r"^## (.*)$", text, re.M)
    }
    assert "Request: [TagRequest](#tagrequest). Answer: [TagAnswer](#taganswer)." in text
    assert "| `threshold` | number or null | Minimum score of a tag. |" in text
    for name in re.findall(r"\]\(#(\w+)\)", text):
        assert re.search(rf"^### {name}$", text, re.M | re.I), name


def documented() -> Iterator[tuple[str, Any]]:
    """Yield what the page on Python lists, and the methods of the classes that users meet most."""
    page = (pages.DOCS / "reference/python.md").read_text()
    for name in re.findall(r"^\.\. auto\w+:: ([\w.]+)$", page, re.M):
        yield name, pkgutil.resolve_name(name if name.count(".") == 1 else ":".join(name.rsplit(".", 1)))
    for kind in (zipfel.Tagger, zipfel.Dataset, zipfel.Part, zipfel.Ranking, zipfel.Reason, Report, BatchTagger):
        for name, own in vars(kind).items():
            if name[0] != "_" and isinstance(own, FunctionType | classmethod):  # scikit-learn adds others
                yield f"zipfel.{kind.__name__}.{name}", getattr(kind, name)


PUBLIC = dict(documented())


def section(docstring: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", f"{docstring}\n", re.M)
    return found[1] if found else ""


def parameters(thing: Any) -> set[str]:
    """Return the parameters that a docstring should name; those of settings have a help text of their own."""
    if isinstance(thing, type) and issubclass(thing, Settings):
        return set()
    if isinstance(thing, type) and issubclass(thing, Exception) and "__init__" not in vars(thing):
        return set()
    return {*inspect.signature(thing).parameters} - {"self"}


def test_the_reference_lists_every_public_name():
    assert {f"zipfel.{name}" for name in zipfel.__all__} - {*PUBLIC} == {"zipfel.__version__"}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_args_returns_and_an_example(name):
    thing = PUBLIC[name]
    docstring = inspect.getdoc(thing) or ""
    described = {*re.findall(r"^    (\w+): ", section(docstring, "Args"), re.M)}
    assert described == parameters(thing)
    assert "    >>> " in section(docstring, "Example")
    if not isinstance(thing, type) and inspect.signature(thing).return_annotation not in (None, "None"):
        assert section(docstring, "Returns")
