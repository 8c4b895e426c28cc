"""The package as others install it."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

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
