"""Make the environments of peers: `python benchmarks/peers/install.py [--into .peers] [PEER ...]`.

A PEER is a peer of `zipfel bench --peers`, or an environment; some peers, such as knn and sklearn, share one.

requirements/PEER.txt lists the packages of a peer with exact versions; those in PEER.no-deps.txt are installed without
their dependencies. A peer that cannot be installed is reported here, and by `zipfel bench`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
PEERS = sorted(path.stem for path in REQUIREMENTS.glob("*.txt") if not path.stem.endswith(".no-deps"))
RECIPES = Path(__file__).parent.parent / "recipes" / "peers"
FAILED = "failed.txt"  # in place of the environment: why it could not be made


def environments() -> dict[str, str]:
    """Return the environment of each peer by the peer's name, and each environment by its own."""
    recipes = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(RECIPES.glob("*.toml"))}
    return {**{name: recipe["environment"] for name, recipe in recipes.items()}, **dict(zip(PEERS, PEERS, strict=True))}


def commands(peer: str, folder: Path) -> list[list[str]]:
    """Return the commands that make the environment of a peer."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    bare = REQUIREMENTS / f"{peer}.no-deps.txt"
    return [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "-r", str(REQUIREMENTS / f"{peer}.txt")],
        *([[*pip, "--no-deps", "-r", str(bare)]] if bare.exists() else []),
    ]


def installed(peer: str, into: Path) -> bool:
    """Make a new environment for a peer; return whether it worked."""
    folder = into / peer
    shutil.rmtree(folder, ignore_errors=True)
    for command in commands(peer, folder):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / FAILED).write_text((run.stdout + run.stderr)[-2000:])
            return False
    return True


def main() -> int:
    known = environments()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"one of {', '.join(known)}; default: all")
    parser.add_argument("--into", type=Path, default=Path(".peers"), help="folder of the environments")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.peers) - set(known))
    if unknown:
        parser.error(f"unknown peer {unknown[0]!r}; there are {', '.join(known)}")
    failed = []
    for peer in dict.fromkeys(known[peer] for peer in arguments.peers or PEERS):
        good = installed(peer, arguments.into)
        sys.stdout.write(f"{peer}: {'installed' if good else f'failed, see {arguments.into / peer / FAILED}'}\n")
        sys.stdout.flush()
        failed += [] if good else [peer]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
