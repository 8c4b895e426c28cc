"""Packages of the registries, downloaded by their ordinary clients: `apt-get download`, `npm pack`, `pip download`."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """An unpacked package."""

    name: str
    version: str
    folder: Path


def debian(names: Iterable[str], folder: Path) -> list[Package]:
    """Download and unpack Debian packages, in the versions that `apt-get update` has made known."""
    return [_debian(name, folder / name) for name in names]


def _debian(name: str, folder: Path) -> Package:
    folder.mkdir(parents=True)
    output(["apt-get", "-o", "APT::Sandbox::User=root", "download", name], folder)
    archive = str(next(folder.glob("*.deb")))
    output(["dpkg-deb", "-x", archive, "files"], folder)
    return Package(name, output(["dpkg-deb", "-f", archive, "Version"], folder).strip(), folder / "files")


def npm(names: Iterable[str], folder: Path) -> list[Package]:
    """Download and unpack npm packages, in their latest versions."""
    return [_npm(name, folder / name) for name in names]


def _npm(name: str, folder: Path) -> Package:
    folder.mkdir(parents=True)
    output(["npm", "pack", name], folder)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    inside = folder / "package"
    return Package(name, json.loads((inside / "package.json").read_bytes())["version"], inside)


def pypi(names: Iterable[str], folder: Path) -> list[Package]:
    """Download and unpack wheels of PyPI, in their latest versions, without dependencies."""
    return [_pypi(name, folder / name) for name in names]


def _pypi(name: str, folder: Path) -> Package:
    folder.mkdir(parents=True)
    output([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", ".", name], folder)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "files")
    return Package(name, wheel.name.split("-")[1], folder / "files")


def output(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder, and return what it prints."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(
            f"{command[0]} is not installed: this data set is made of packages that it downloads"
        ) from None
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
