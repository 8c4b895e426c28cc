"""The files of the page, and the Dockerfile."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from zipfel.server import files

ROOT = Path(__file__).parents[2]

FIXED = {  # the first version without a hole that is known, and the last of its holes
    "h11": ("0.16.0", "CVE-2025-43859"),
    "orjson": ("3.11.6", "CVE-2025-67221"),
    "pyarrow": ("23.0.1", "CVE-2026-25087"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "ray": ("2.56.0", "CVE-2026-57516"),
    "scikit-learn": ("1.5.0", "CVE-2024-5206"),
    "setuptools": ("78.1.1", "CVE-2025-47273"),
    "starlette": ("1.3.1", "CVE-2026-54283"),
    "torch": ("2.10.0", "CVE-2026-24747"),
    "uvicorn": ("0.11.7", "CVE-2020-7695"),
}
PINNED_ONLY = {  # packages that others bring: no lowest version of ours, but an exact one in constraints.txt
    "idna": ("3.15", "PYSEC-2026-215"),
    "mcp": ("1.28.1", "CVE-2026-59950"),
    "pillow": ("12.3.0", "PYSEC-2026-2257"),
    "urllib3": ("2.7.0", "PYSEC-2026-142"),
}


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
    assert {line.split()[1] for line in lines if line.startswith("FROM")} == {"${PYTHON}${DIGEST:+@${DIGEST}}"}
    users = [line for line in lines if line.startswith("USER")]
    assert users == ["USER 10001:10001"]
    assert lines.index(users[0]) < next(number for number, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes --no-deps" in installs[0]
    assert "--no-deps --no-build-isolation ." in installs[1]  # nothing but what is locked
    assert any('CMD ["python", "-m", "zipfel.server.probe"]' in line for line in lines)
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == allowed
    assert all((ROOT / name).exists() for name in copied)


def requirement(line: str) -> tuple[str, str]:
    """Return the name and the version of a pinned requirement, the name as pip compares it."""
    name, version = line.split()[0].split("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version.removesuffix("+cpu")


def test_the_lock_file_has_the_versions_of_the_constraints_and_a_hash_of_each():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    locked = dict(map(requirement, lines))
    constraints = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = dict(map(requirement, constraints))
    del locked["setuptools"]  # builds the package; no constraint
    assert locked == {name: pinned[name] for name in locked}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    for line in wanted:
        name, floor = re.match(r"([\w.-]+)>=([\d.]+)", line).groups()
        assert Version(locked[name]) >= Version(floor)
    for name in locked:  # and all that these need, without what torch with CUDA would need
        for needed in map(Requirement, metadata.requires(name) or []):
            is_cuda = needed.name.startswith(("nvidia-", "cuda-", "triton"))
            if not is_cuda and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
                assert canonicalize_name(needed.name) in {*locked, "setuptools"}, name


def test_lowest_and_exact_versions_are_above_known_holes():
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = content["project"]["optional-dependencies"].values()
    wanted = [*content["build-system"]["requires"], *content["project"]["dependencies"], *chain(*groups)]
    floors = [(need.name, min(each.version for each in need.specifier)) for need in map(Requirement, wanted)
              if need.specifier]  # fmt: skip
    lines = [
        *(ROOT / "constraints.txt").read_text().splitlines(),
        *(ROOT / "requirements.lock").read_text().splitlines(),
    ]
    exact = [requirement(line) for line in lines if "==" in line and not line.startswith("#")]
    assert {name for name, _ in floors} >= set(FIXED)
    for name, version in floors:
        fixed, hole = FIXED.get(name, ("0", ""))
        assert Version(version) >= Version(fixed), f"{name}>={version} allows {hole}"
    for name, version in exact:
        fixed, hole = (FIXED | PINNED_ONLY).get(name, ("0", ""))
        assert Version(version) >= Version(fixed), f"{name}=={version} has {hole}"


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_colours_of_the_page_can_be_told_apart(mode):
    css = (ROOT / "zipfel/server/page/page.css").read_text()
    colours = {name: pair[mode] for name, *pair in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    assert len(colours) == 10
    for ground in ("paper", "sheet", "track"):
        for text in ("ink", "soft", "accent", "against", "fresh"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["line"], colours[ground]) >= 3, ground
    assert contrast(colours["ink"], colours["mark"]) >= 4.5
