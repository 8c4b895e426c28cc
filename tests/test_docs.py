"""Code blocks of README, guide and tutorial run, page by page, in an empty folder; links and named files exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from zipfel.cli.main import app_for

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
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
def test_code_blocks_run(page, zipfel_command, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if "<!-- hub -->" in page.read_text():
        request.getfixturevalue("hub")
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    """Run its blocks in order, as a reader does, in a shell and in Python; only the port is another one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    command = tmp_path / "bin" / "zipfel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m zipfel "$@"\n')
    command.chmod(0o755)
    paths = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    page = (ROOT / "docs" / "tutorial.md").read_text().replace("8000", str(free_port()))
    shown = []
    for block in BLOCK.finditer(page):
        shell = {"sh": ["bash", "-emc"], "python": [sys.executable, "-c"]}.get(block["kind"])
        if shell:
            run = subprocess.run(
                [*shell, block["code"]], cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True
            )
            assert run.returncode in (0, 130), f"{block['code']}\n{run.stderr}"
            shown.append(run.stdout)
    info, trained, evaluated, predicted, explained, tagged, python, served = shown
    assert "9 labels" in info.replace("labels  ", "labels ") or "9" in info
    assert "tickets: trained in" in trained
    assert "P" in evaluated
    assert predicted.splitlines()[1].split()[1] == "vpn"
    assert "VPN" in predicted  # the text of the label
    assert "vpn: +" in explained
    assert "tags.csv: 60 texts tagged" in tagged
    assert "'printer'" in python
    assert '"label":"mail"' in served


def lines_of_shell(page: Path) -> list[str]:
    """Return the zipfel commands of a page's sh and console blocks, without comments."""
    code = "".join(block["code"] for block in BLOCK.finditer(page.read_text()) if block["kind"] in ("sh", "console"))
    joined = code.replace("\\\n", " ")
    pieces = (piece.strip() for line in joined.splitlines() for piece in re.split(r"\s&&\s|\s&$|\s\|\s|\s#\s.*", line))
    return [piece for piece in pieces if piece.startswith("zipfel ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_of_shell_blocks_exist(page):
    for line in lines_of_shell(page):
        words = shlex.split(line, comments=True)[1:]
        command: Any = typer.main.get_command(app_for(words[0]))
        while getattr(command, "commands", None) is not None and words and not words[0].startswith("-"):
            assert words[0] in command.commands, f"{page.name}: {line}: no command {words[0]}"
            command = command.commands[words.pop(0)]
        known = {"--help", "-h", *(flag for one in command.params for flag in (*one.opts, *one.secondary_opts))}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in known, f"{page.name}: {line}: no option {word}"


FOLDERS = ("docs", "benchmarks", "examples")
ALL_PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]


GENERATED = {ROOT / "docs/reference" / name for name in ("settings.md", "commands.md", "http.md")}  # of tools/site


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()).replace(
            " ", "-"
        )
        found[slug] = found.get(slug, -1) + 1
    return {slug if not copy else f"{slug}-{copy}" for slug, last in found.items() for copy in range(last + 1)}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)", text):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists() or linked in GENERATED, f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md" and linked.exists():
            assert anchor[1:] in anchors(linked), f"{page.name} links to {target}{anchor}"


CURRENT = [page for page in ALL_PAGES if page.name != "CHANGELOG.md" and page.parent.name != "decisions"]  # not history


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_files_named_in_the_text_exist(page):
    roots = [page.parent, *(ROOT / folder for folder in (".", "zipfel", "zipfel/models", "benchmarks"))]
    for name in re.findall(r"`([a-z0-9_/.]+\.py)`", page.read_text()):
        assert any((root / name).exists() for root in roots), f"{page.name} names {name}"
