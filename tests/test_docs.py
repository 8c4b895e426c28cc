"""Code blocks of README and guide run, page by page, in an empty folder; links and named files exist."""

from __future__ import annotations

import re
import shlex
import sys
import types
import zlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


class StubEncoder:
    """Stands in for `SentenceTransformer`, which the tests do not install: a mean of random vectors of words."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, sentences, normalize_embeddings: bool = False):
        words = [[np.random.default_rng(zlib.crc32(word.encode())) for word in text.split()] for text in sentences]
        rows = np.array([np.mean([word.normal(size=384) for word in row], axis=0) for row in words], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page, zipfel_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stub = types.ModuleType("sentence_transformers")
    stub.SentenceTransformer = StubEncoder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", stub)
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


FOLDERS = ("docs", "benchmarks", "examples")
ALL_PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


CURRENT = [page for page in ALL_PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]  # not history


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_files_named_in_the_text_exist(page):
    roots = [page.parent, *(ROOT / folder for folder in (".", "zipfel", "zipfel/models", "benchmarks"))]
    for name in re.findall(r"`([a-z0-9_/.]+\.py)`", page.read_text()):
        assert any((root / name).exists() for root in roots), f"{page.name} names {name}"
