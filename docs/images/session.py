"""Record README's terminal: `python docs/images/session.py FOLDER [OPTION ...]`, with options of `zipfel train`.

Runs the commands in FOLDER, which is made if it is missing, and writes docs/images/session.svg. A run that is there is
resumed, and its time, which is that of the rest only, is left out; an empty folder gives the whole session.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rich.color import parse_rgb_hex
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from zipfel.design import COLOURS

ROOT = Path(__file__).parents[2]
WIDTH = 104
PHRASES = ["sharp chest pain on breathing", "allergic reaction to peanuts"]
GROUND, TEXT, PROMPT = (parse_rgb_hex(COLOURS[name][1][1:]) for name in ("sheet", "ink", "accent"))
DARK = TerminalTheme(GROUND, TEXT, [GROUND] * 8, [TEXT] * 8)
FONT = "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"


def main(folder: Path, options: list[str]) -> None:
    """Run the session and write the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    commands = [
        ["train", "icd10cm", "--out", "icd", *options],
        ["predict", "icd", *PHRASES, "--k", "3"],
    ]
    if not (folder / "icd10cm").exists():
        commands.insert(0, ["data", "get", "icd10cm"])
    resumed = (folder / "icd").exists()
    for words in commands:
        console.print(Text.assemble(("$ ", PROMPT.hex), (f"zipfel {shlex.join(words)}", "bold")))
        for line in output(words, folder):
            if resumed and ": trained in " in line:
                continue
            console.print(Text.from_ansi(line), soft_wrap=True)
        console.print()
    (ROOT / "docs" / "images" / "session.svg").write_text(picture(console))


def output(words: list[str], folder: Path) -> list[str]:
    """Return the lines that a command prints, without those that only show progress."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)}
    if words[0] != "train":
        environment["FORCE_COLOR"] = "1"
    command = [sys.executable, "-m", "zipfel", *words]
    run = subprocess.run(
        command, cwd=folder, env=environment, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return [line for line in run.stdout.splitlines() if ", epoch " not in line and ": resuming" not in line]


def picture(console: Console) -> str:
    """Return the recorded terminal as SVG, without fonts from other hosts."""
    svg = console.export_svg(title="zipfel", theme=DARK, unique_id="session")
    before, _, after = svg.partition("@font-face")
    svg = before + after[after.rindex("@font-face") :].partition("}")[2] if "@font-face" in after else svg
    return svg.replace("font-family: Fira Code, monospace;", FONT).replace("<svg ", '<svg xml:space="preserve" ', 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
