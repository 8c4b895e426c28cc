"""Draw README's picture of the output of `zipfel data info DATA`: `python docs/images/draw.py DATA`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.terminal_theme import TerminalTheme

from zipfel.cli import data, show
from zipfel.data.formats import TableSettings
from zipfel.data.splits import Preparation

DARK = TerminalTheme((24, 26, 31), (220, 223, 228), [(24, 26, 31)] * 8, [(220, 223, 228)] * 8)
FONT = "font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace;"

show.console.file = io.StringIO()
show.console.record, show.console.width = True, 78
data.info(source=Path(sys.argv[1]), format=None, **{
    field: None for kind in (TableSettings, Preparation) for field in kind.__dataclass_fields__
})  # fmt: skip
svg = show.console.export_svg(title=f"zipfel data info {Path(sys.argv[1]).name}", theme=DARK)
before, _, after = svg.partition("@font-face")  # no fonts from another host
svg = before + after[after.rindex("@font-face") :].partition("}")[2] if "@font-face" in after else svg
svg = svg.replace("font-family: Fira Code, monospace;", FONT).replace("<svg ", '<svg xml:space="preserve" ', 1)
(Path(__file__).parent / "info.svg").write_text(svg)
