"""Train, tag and serve with the zipfel that is installed, as a user would: run by `tools.release`.

It must run outside the repository, in the environment that is tried, and imports nothing of the repository.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROWS = ["no paper in the printer,printer", "paper jam,printer", "no wifi,network", "the wifi is slow,network;slow"]
COMMAND = [sys.executable, "-m", "zipfel"]


def main() -> None:
    """Train on a table, tag a text, and ask the service for the same tag."""
    import zipfel

    here = Path(zipfel.__file__).parents[1]
    assert here != Path(__file__).parents[1], f"{here} is the repository, not an installed package"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "tickets.csv").write_text("\n".join(["text,labels", *ROWS * 30]) + "\n")
        columns = ["--text", "text", "--labels", "labels", "--sep", ";"]
        _zipfel(folder, "train", "tickets.csv", *columns, "--model", "glas", "--preset", "fast", "--out", "run")
        assert "printer" in _zipfel(folder, "predict", "run", "a jam in the printer", "--k", "1")
        assert _served(folder) == "printer"
    print(f"zipfel {zipfel.__version__} trains, tags and serves with Python {sys.version.split()[0]}")


def _zipfel(folder: Path, *words: str) -> str:
    return subprocess.run([*COMMAND, *words], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def _served(folder: Path) -> str:
    """Return the first tag that the service gives; it says on which port it listens."""
    command = [*COMMAND, "serve", "run", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            events = (json.loads(line) for line in process.stdout if line.startswith("{"))
            address = "http://127.0.0.1:{port}".format_map(next(e for e in events if e["event"] == "serving"))
            body = json.dumps({"texts": ["a jam in the printer"], "k": 1}).encode()
            request = urllib.request.Request(f"{address}/tag", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(json.load(answer)["tags"][0][0]["label"])
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
