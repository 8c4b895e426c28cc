"""The package as others install it."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import zipfel
from tools import release

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_classifiers_name_the_versions_of_python():
    versions = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")}
    assert versions == {"3", "3.11", "3.12", "3.13"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_type_checkers_find_an_editable_install(tmp_path):
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    shutil.copytree(ROOT / "zipfel", source / "zipfel", ignore=shutil.ignore_patterns("__pycache__"))
    wheels.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools.build_meta import build_editable; build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        paths = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".pth")]
    assert [Path(path.strip()) for path in paths] == [source]  # a path: mypy runs no import hook
    assert (ROOT / "zipfel" / "py.typed").exists()


def test_the_version_lies_in_one_place():
    assert PROJECT["dynamic"] == ["version"]
    number = re.escape(zipfel.__version__)
    for path in [ROOT / "pyproject.toml", ROOT / "CITATION.cff", *sorted((ROOT / ".github").rglob("*.yml"))]:
        assert not re.search(rf"^\W*version\W+{number}\b", path.read_text(), re.M), path


FILES = ["zipfel/__init__.py", "zipfel/server/page/page.css", "tests/test_a.py", "README.md", ".github/workflows/a.yml"]
METADATA = ["zipfel-1.dist-info/METADATA", "zipfel-1.dist-info/licenses/LICENSE"]


def test_a_release_has_the_files_that_git_tracks_and_no_others():
    wheel = [*FILES[:2], *METADATA]
    assert release.wheel_problems(wheel, FILES) == []
    assert release.wheel_problems([*wheel, "tests/test_a.py"], FILES) == [
        "wheel: tests/test_a.py does not belong there"
    ]
    assert release.wheel_problems([FILES[0], *METADATA], FILES) == ["wheel: zipfel/server/page/page.css is missing"]
    assert release.wheel_problems(FILES[:2], FILES) == ["wheel: the licence is missing"]
    sdist = [*FILES[:4], "PKG-INFO", "zipfel.egg-info/SOURCES.txt"]
    assert release.sdist_problems(sdist, FILES) == []
    assert release.sdist_problems([*sdist[:3], "secret.key"], FILES) == [
        "sdist: README.md is missing",
        "sdist: secret.key does not belong there",
    ]


def test_checksums_are_those_that_sha256sum_reads(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"abc")
    sum_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert release.checksums([tmp_path / "a.whl"]) == f"{sum_of_abc}  a.whl\n"


def test_a_release_does_not_mix_with_old_files(tmp_path):
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="has files already"):
        release.main(tmp_path)


def test_the_changelog_has_this_version_with_its_date_below_what_is_not_released():
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heads[0] == "Unreleased"
    assert re.fullmatch(rf"{re.escape(zipfel.__version__)} - \d{{4}}-\d\d-\d\d", heads[1])
