"""Text of a card, in Markdown."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zipfel import __version__
from zipfel.card.figures import ENOUGH, KS, LEVEL, RESAMPLES, WEAK, Figures, Interval, Weak
from zipfel.card.front import Stated, front_matter, names
from zipfel.data.formats.files import shortened
from zipfel.data.formats.readme import sealed
from zipfel.metrics import frequencies

PLACE = "OWNER/NAME"  # where the name on the Hub belongs, which `zipfel push` fills in
FEW = 30  # points below which an interval says little
UNKNOWN = Stated()


def card(
    about: Mapping[str, Any],
    documents: Mapping[str, Any],
    stated: Stated = UNKNOWN,
    figures: Figures | None = None,
) -> str:
    """Return the card of a saved model.  about: content of `model.json`.  documents: the JSON of `serve/`."""
    data = about.get("source", {}).get("name") or (figures.data if figures is not None else "")
    name = f"{about['model']} on {data}" if data else str(about["model"])
    body = [
        f"# {cell(name)}",
        _summary(about, documents),
        _section("Use", _use("vocabulary" in documents)),
        _section("Data", _data(data, about, documents["labels"], stated)),
        _section("Figures", _figures(about, figures)),
        _section("Calibration", _calibration(documents.get("calibration"), figures)),
        _section("Labels it is poor at", _poor(figures)),
        _section("Settings", _settings(about)),
        _section("Licence", _licence(stated)),
    ]
    return sealed(f"{front_matter(name, about, stated, figures)}\n" + "\n".join(body) + "\n\n")


def _section(title: str, content: str) -> str:
    return f"\n## {title}\n\n{content}"


def _summary(about: Mapping[str, Any], documents: Mapping[str, Any]) -> str:
    live = len(documents["labels"]["names"]) - len(documents["labels"]["removed"])
    what = "texts" if "vocabulary" in documents else f"rows of {about['sizes']['features']:,} features"
    return (
        f"\nTags {what} with labels from a set of {live:,}, best first, each with a score in [0, 1]. "
        f"Trained with zipfel {about.get('zipfel', __version__)}."
    )


def _use(texts: bool) -> str:
    asked = '["a text to tag"]' if texts else "X"
    note = "" if texts else "X is a matrix with a row for each point and the columns that the model was trained on.\n\n"
    python = f'from zipfel import Tagger\n\ntagger = Tagger.load("model")\ntagger.predict({asked}, k=5)'
    shell = f"zipfel pull {PLACE} model"
    shell += '\nzipfel predict model "a text to tag"\nzipfel serve model' if texts else "\nzipfel serve model"
    return f"{note}```sh\npip install 'zipfel[hub,serve]'\n{shell}\n```\n\n```python\n{python}\n```"


def _data(data: str, about: Mapping[str, Any], labels: Mapping[str, Any], stated: Stated) -> str:
    source, counts = about.get("source", {}), labels["counts"]
    points, unseen = source.get("points", 0), sum(count == 0 for count in counts)
    rows = [
        ("name", cell(data) or "unknown"),
        ("languages", names(stated.languages)),
        ("training points", f"{points:,}" if points else "unknown"),
        ("labels", f"{len(counts):,}" + (f" ({unseen:,} without a training point)" if unseen else "")),
        *([("labels per training point", f"{sum(counts) / points:.1f}")] if points else []),
        ("features", f"{about['sizes']['features']:,}"),
    ]
    fields = source.get("columns", {}).get("text") or ()
    rows += [("text fields", ", ".join(map(cell, fields)))] if fields else []
    return table(("", ""), rows)


def _figures(about: Mapping[str, Any], figures: Figures | None) -> str:
    training = about["training"]
    held = ""
    if training.get("best") is not None and training.get("metric"):
        held = f"{training['metric']} on points held out of training: {100 * training['best']:.1f} %.\n"
    if figures is None:
        return (
            held
            + ("\n" if held else "")
            + "Not measured on test points: `zipfel card model DATA` measures and adds figures."
        )
    remarks = "".join(f"- {remark}\n" for remark in figures.remarks)
    rows = [
        (name, *(_interval(figures.metrics[f"{name}@{k}"]) for k in KS))
        for name in dict.fromkeys(key.partition("@")[0] for key in figures.metrics)
    ]
    few = f" {figures.points} points are few, so the intervals say little." if figures.points < FEW else ""
    note = (
        f"{figures.points:,} points of {cell(figures.data) or 'the data'} ({figures.part}), {figures.labels:,} labels; "
        f"percent, with {LEVEL} % intervals of a bootstrap over points ({RESAMPLES:,} resamples).{few} PSP gives "
        f"rare labels more weight. {figures.coverage:.1f} % of the labels in these data are right in the top {KS[-1]} "
        "of at least one point."
    )
    micro = {name: figures.averages[f"micro{name}"] for name in ("P", "R", "F1")}
    at = (
        f"Tags with a score of at least {figures.threshold}: precision {micro['P']:.1f} %, recall {micro['R']:.1f} %, "
        f"F1 {micro['F1']:.1f} % (micro); macro-F1 {figures.averages['macroF1']:.1f} %."
    )
    more = ["", held] if held else []
    return "\n".join([remarks, table(("", *(f"@{k}" for k in KS)), rows), "", note, "", at, *more])


def _interval(interval: Interval) -> str:
    return f"{interval.value:.1f} ({interval.low:.1f} to {interval.high:.1f})"


def _calibration(document: Mapping[str, Any] | None, figures: Figures | None) -> str:
    if document is None:
        text = "Scores are not calibrated: too few points were held out of training. Do not read them as probabilities."
    else:
        own = document["figures"]
        text = (
            f"Scores are probabilities, learned on {own['points']:,} held-out points ({own['method']}). Their mean "
            f"error there is {100 * own['error_after']:.1f} %, uncalibrated {100 * own['error_before']:.1f} % "
            "(expected calibration error)."
        )
    if figures is None:
        return text
    return f"{text} On {cell(figures.data) or 'the data'}, their mean error as probabilities is {figures.error:.1f} %."


def _poor(figures: Figures | None) -> str:
    if figures is None:
        return "Not measured."
    shares = [
        (
            frequencies(share.lowest, share.highest),
            f"{share.labels:,}",
            _percent(share.precision),
            _percent(share.recall),
        )
        for share in figures.shares
    ]
    heads = ("training points per label", "labels", "precision, %", "recall, %")
    start = f"Precision and recall by training frequency, for scores of at least {figures.threshold}:\n\n"
    return start + table(heads, shares) + "\n\n" + _weak(figures.weak)


def _weak(weak: Sequence[Weak]) -> str:
    if not weak:
        return f"No label with at least {ENOUGH} test points has an F1 below {100 * WEAK:.0f} %."
    heads = ("label", "precision, %", "recall, %", "F1, %", "test points", "training points")
    rows = [
        (cell(one.label), *(_percent(100 * share) for share in one[1:4]), f"{one.support:,}", f"{one.trained:,}")
        for one in weak
    ]
    return f"Labels with the lowest F1, among those with at least {ENOUGH} test points:\n\n" + table(heads, rows)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def _settings(about: Mapping[str, Any]) -> str:
    text = about.get("text") or {"text": about["tagger"].get("text")}  # older models have no such entry
    chosen, training = about["chosen"], about["training"]
    epochs = f", {training['epochs']} epochs" if training.get("epochs") else ""
    lines = [
        f"Model `{about['model']}`, preset `{chosen['preset']}` ({cell(chosen['why'])}), "
        f"seed {about['tagger']['seed']}. Training took {training['seconds']:,.0f} seconds{epochs}"
        + (", and was stopped by Ctrl-C." if training["interrupted"] else "."),
        f"```json\n{json.dumps(about['settings'], indent=1, ensure_ascii=False)}\n```",
    ]
    if text["text"]:
        lines.append(f"Text features that differ from the usual ones: `{json.dumps(text['text'])}`.")
    return "\n\n".join(lines)


def _licence(stated: Stated) -> str:
    if stated.license is None:
        return "Unknown: nobody has stated one. Ask the author before you use the model."
    return f"{stated.license}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: first column text, the others numbers."""
    lines = [heads, ["---", *(["---:"] * (len(heads) - 1))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    r"""Return a text as one line of Markdown that shows it as it is.

    >>> cell("a|b\n<i>")
    'a\\|b \\<i\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", shortened(" ".join(text.split()), 120))
