"""The files of the page, and the Dockerfile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zipfel.server import files

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "page").mkdir()
    for name in ("index.html", "page.js", "page.css", "notes.txt"):
        (tmp_path / "page" / name).write_text(f"content of {name}")
    monkeypatch.setattr(files, "files", lambda package: tmp_path)
    files._files.cache_clear()
    yield
    files._files.cache_clear()


@pytest.mark.usefixtures("page")
def test_files_have_a_content_type_and_are_cached(client):
    kinds = {"/": "text/html", "/page/page.js": "text/javascript", "/page/page.css": "text/css"}
    for path, kind in kinds.items():
        answer = client.ask("GET", path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        again = client.ask("GET", path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.ask("GET", path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.ask("GET", "/").text == "content of index.html"


@pytest.mark.usefixtures("page")
def test_only_files_of_the_page_are_served(client):
    for name in ("notes.txt", "none.js", "..%2fapp.py", "%2e%2e/app.py", "page.js/"):
        assert client.ask("GET", f"/page/{name}").status_code == 404


def test_the_container_is_pinned_and_not_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert re.fullmatch(r"ARG PYTHON=python:\d+\.\d+\.\d+-slim-\w+", next(x for x in lines if x.startswith("ARG")))
    assert {line.split()[1] for line in lines if line.startswith("FROM")} == {"${PYTHON}"}
    users = [line for line in lines if line.startswith("USER")]
    assert users == ["USER 10001:10001"]
    assert lines.index(users[0]) < next(number for number, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert any("pip install -c constraints.txt" in line for line in lines)
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)
