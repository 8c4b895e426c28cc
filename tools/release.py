"""Build a release and check it as a user would get it: `make release`, or `python -m tools.release dist`.

Wheel and sdist are built from the files that git tracks, checked by `twine check` and by their lists of files, and the
wheel is installed into a new environment outside the repository, where it trains, tags and serves. Besides the two
there are a software bill of materials (CycloneDX) of that environment, and SHA256SUMS. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = (".ci/", ".github/", ".dockerignore", ".gitignore")  # of the repository, for the repository
ADDED = {"PKG-INFO", "setup.cfg"}  # by setuptools, to the sdist


def main(out: Path, environment: bool = True) -> None:
    """Write a checked release into a new or empty folder.  environment: also try the wheel in a clean environment."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out}: has files already; remove them, so that no old file is released")
    with tempfile.TemporaryDirectory() as temporary:
        source, built = Path(temporary) / "source", Path(temporary) / "built"
        copy_tracked(source)
        _run([sys.executable, "-m", "build", "--outdir", built, source])
        wheel, sdist = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
        _run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
        problems = [*wheel_problems(wheel_names(wheel), tracked()), *sdist_problems(sdist_names(sdist), tracked())]
        if problems:
            raise SystemExit("\n".join(problems))
        if environment:
            python = clean_environment(Path(temporary) / "environment", wheel)
            _run([python, ROOT / "tools" / "try_release.py"], cwd=Path(temporary))
            write_bill(python, built / f"{wheel.stem.split('-py3')[0]}.cdx.json")
        (built / "SHA256SUMS").write_text(checksums(sorted(built.iterdir())))
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(built.iterdir()):
            shutil.copy(file, out)
            print(out / file.name)


def tracked() -> list[str]:
    """Return the files that git tracks, with those that are new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def copy_tracked(target: Path) -> None:
    """Copy the tracked files to a new folder: what else lies in a working copy must not get into a release."""
    for name in tracked():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)


# --- Contents ---------------------------------------------------------------------------------------------------------


def wheel_names(wheel: Path) -> list[str]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def sdist_names(sdist: Path) -> list[str]:
    """Return the files of an sdist, without the folder that all lie in."""
    with tarfile.open(sdist) as archive:
        return [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]


def wheel_problems(names: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return what is wrong with the list of files of a wheel: it has the package and its metadata, nothing else."""
    own = {name for name in names if ".dist-info/" not in name}
    problems = _differences("wheel", own, {name for name in files if name.startswith("zipfel/")})
    if not any(name.endswith("licenses/LICENSE") for name in names):
        problems.append("wheel: the licence is missing")
    return problems


def sdist_problems(names: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return what is wrong with the list of files of an sdist: it has what git tracks, but for NOT_SHIPPED."""
    own = {name for name in names if name not in ADDED and ".egg-info/" not in name}
    return _differences("sdist", own, {name for name in files if not name.startswith(NOT_SHIPPED)})


def _differences(kind: str, found: set[str], expected: set[str]) -> list[str]:
    missing = [f"{kind}: {name} is missing" for name in sorted(expected - found)]
    return missing + [f"{kind}: {name} does not belong there" for name in sorted(found - expected)]


# --- The environment of a user ----------------------------------------------------------------------------------------


def clean_environment(folder: Path, wheel: Path) -> Path:
    """Install the wheel with what `serve` needs into a new environment, with the pinned versions; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    _run([python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[serve,tables]"])
    return python


def write_bill(python: Path, path: Path) -> None:
    """Write the CycloneDX bill of materials of an environment."""
    pyproject = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"]
    _run([sys.executable, "-m", "cyclonedx_py", "environment", *pyproject, "--output-reproducible", "-o", path, python])


def checksums(paths: Iterable[Path]) -> str:
    """Return lines as `sha256sum --check` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def _run(command: Sequence[object], cwd: Path = ROOT) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--no-environment", action="store_true", help="do not try the wheel in a clean environment")
    given = parser.parse_args()
    main(given.out, not given.no_environment)
