"""Build the site: `make docs`, or `python -m tools.site site`. A warning of Sphinx is an error."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.site.pages import stage


def main(words: list[str]) -> int:
    """Write the site into a folder, which is replaced when everything went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the site; one that is there is replaced")
    out = parser.parse_args(words).out
    if out.exists() and any(out.iterdir()) and not (out / "searchindex.js").exists():
        raise SystemExit(f"{out}: is not empty, and no site; name a new folder")
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary) / "source", Path(temporary) / "site"
        stage(source)
        command = [
            "-m",
            "sphinx",
            "-W",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "-d",
            f"{temporary}/cache",
            str(source),
            str(built),
        ]
        if code := subprocess.run([sys.executable, *command]).returncode:
            return code
        if out.exists():
            shutil.rmtree(out)
        shutil.move(built, out)
    print(f"{out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
