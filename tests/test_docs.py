"""Every code block of README and guide is run, page by page, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, zipfel_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = 0
    for block in BLOCK.finditer(page.read_text()):
        kind, code = block["kind"], block["code"]
        if block["file"]:
            Path(block["file"]).write_text(code)
        elif kind == "python":
            exec(compile(code, page.name, "exec"), names)
            ran += 1
        elif kind == "console":
            for line in code.splitlines():
                if line.startswith("zipfel "):
                    outcome = zipfel_command(*shlex.split(line, comments=True)[1:])
                    assert outcome.code == 0, f"{page.name}: {line}\n{outcome.err}"
                    ran += 1
    assert ran, f"{page.name} shows nothing that can be run"


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
