"""The report as one self-contained HTML file without scripts, for screen and print."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from zipfel.data.dataset import Dataset
from zipfel.data.formats.files import shortened
from zipfel.evaluate import metric_rows
from zipfel.explain import Reason
from zipfel.label_report import LabelReport
from zipfel.models.base import settings_of
from zipfel.report import plots
from zipfel.report.documents import JUDGED, LENGTH, Confusion, Document, Label
from zipfel.report.findings import Findings
from zipfel.report.style import CSS
from zipfel.text_choice import Trial

LISTED = 50  # labels with precision, recall and F1
LONGEST = 700  # characters of a text that are shown
HEADLINE = ("P@1", "P@5", "nDCG@5", "PSP@5", "coverage@5")


def page(findings: Findings, dataset: Dataset, about: Mapping[str, Any], remarks: Sequence[str] = ()) -> str:
    """Return the page.  about: content of the model's `model.json`.  remarks: what to know before the figures."""
    name = dataset.name or "data"
    title = f"{about['model']} on {name}"
    body = [
        _head(findings, dataset, about, remarks),
        _section("Metrics", _metrics(findings)),
        _section("Rare and frequent labels", _frequencies(findings)),
        _section("Labels at a threshold", _labels(findings.labels, findings.tuned)),
        _section("Calibration and shortlist", _calibration(findings)),
        _section("Worst documents", _documents(findings.worst, "Lowest nDCG@5; ties: most confident errors first.")),
        _section("Best documents", _documents(findings.best, "Highest nDCG@5; ties: most labels first.")),
        _section("Most confused labels", _confusions(findings.confusions)),
        _section("Settings", _settings(dataset, about)),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f'<section class="{title.split()[0].lower()}">\n<h2>{title}</h2>\n{content}\n</section>'


def _head(findings: Findings, dataset: Dataset, about: Mapping[str, Any], remarks: Sequence[str]) -> str:
    sizes = f"{findings.report.points:,} {findings.part} points, {findings.report.labels:,} labels"
    figures = "".join(
        f"<div><dd>{findings.report.values[name]:.1f}</dd><dt>{name}</dt></div>"
        for name in HEADLINE
        if name in findings.report.values
    )
    lines = "".join(f'<p class="note">{escape(remark)}</p>\n' for remark in remarks)
    return (
        f"<header>\n<h1>{escape(about['model'])} <span>on</span> {escape(dataset.name or 'data')}</h1>\n"
        f'<p class="lead">{escape(_made(about))} · {sizes}</p>\n{lines}<dl class="headline">{figures}</dl>\n</header>'
    )


def _made(about: Mapping[str, Any]) -> str:
    """Return the preset and the settings that differ from it."""
    preset = about["chosen"]["preset"]
    usual = dataclasses.asdict(settings_of(about["model"], preset))
    changed = [f"{name} {_value(value)}" for name, value in about["settings"].items() if value != usual.get(name)]
    return f"preset {preset}" + (f" with {', '.join(changed)}" if changed else "")


def _metrics(findings: Findings) -> str:
    report = findings.report
    ks = sorted({int(name.partition("@")[2]) for name in report.values})
    heads = ["", *(f"@{k}" for k in ks)]
    tables = _table(heads, [*metric_rows(report.values, ks), *metric_rows(report.macro, ks)], "In percent")
    if report.only_tail:
        caption = f"{report.only_tail_points:,} points with tail labels only"
        tables += _table(heads, metric_rows(report.only_tail, ks), caption)
    tables += "".join(_table(heads, metric_rows(level.values, ks), str(level)) for level in report.levels)
    note = (
        f"PSP, PSnDCG and PSR give rare labels more weight (A {report.propensity.A:g}, B {report.propensity.B:g}); "
        "macro metrics are means over labels; coverage is the share of labels predicted correctly at least once."
    )
    caption = f"Precision, recall and coverage of the top 1 to {len(findings.curves['P'])} predictions."
    figure = _figure(caption, plots.curves, findings)
    return f'<div class="columns">{tables}</div>\n<p class="note">{note}</p>\n{figure}'


def _frequencies(findings: Findings) -> str:
    bins = findings.report.bins
    rows = [
        [name, f"{piece.labels:,}", f"{piece.occurrences:,}", f"{piece.contribution:.2f}", f"{share:.1f}"]
        for name, piece, share in zip(plots.bin_names(bins), bins, findings.covered, strict=True)
    ]
    table = _table(["training points per label", "labels", "occurrences", "contribution to P@5", "coverage, %"], rows)
    contribution = "Contribution to P@5 by label frequency; the bars add up to P@5."
    coverage = "Coverage: share of the labels in these data that are right in the top 5 of at least one point."
    note = "Each bin has about the same number of training occurrences; rarest labels first."
    left = _figure(contribution, plots.contributions, bins)
    right = _figure(coverage, plots.covered, findings.covered, bins)
    return f'<div class="pair">{left}{right}</div>\n{table}\n<p class="note">{note}</p>'


def _labels(labels: LabelReport, tuned: bool) -> str:
    why = (
        "which had the best micro-F1 on held-out points"
        if tuned
        else "because there are too few held-out points to choose one"
    )
    averages, count = labels.averages(), len(labels.names)
    kinds = [[kind, *(f"{averages[kind + name]:.2f}" for name in ("P", "R", "F1"))] for kind in ("micro", "macro")]
    note = (
        f"Tags with a score of at least {labels.threshold_text()}, {why}. "
        "Macro averages are over the labels that occur here. "
        + (f"The {LISTED} most frequent of {count:,} labels; " if count > LISTED else "")
        + "zipfel evaluate --per-label FILE writes all of them to a CSV file."
    )
    table = _table(labels.columns, labels.rows(LISTED))
    return f'{_table(["", "P", "R", "F1"], kinds, "In percent")}\n{table}\n<p class="note">{escape(note)}</p>'


def _calibration(findings: Findings) -> str:
    error = f"Mean distance from the diagonal, over the top {JUDGED} predictions: {findings.reliability.error:.1f} %."
    caption = f"Reliability: on the diagonal, a score is a probability. {error}"
    left = _figure(caption, plots.reliability, findings.reliability)
    right = _figure(_shortlist_caption(findings), plots.shortlist, findings.shortlist)
    return f'<div class="pair">{left}{right}</div>'


def _shortlist_caption(findings: Findings) -> str:
    if findings.shortlist.of_points:
        return "Recall of the shortlist: true labels among those of the nearest points. Dashed: how many points vote."
    if findings.shortlist.width is None:
        return "Recall by number of candidates. The model scores all labels: it has no shortlist."
    return "Recall of the shortlist by its length. Dashed: the length that the model uses."


def _documents(documents: Sequence[Document], note: str) -> str:
    note += (
        " Green words support the first prediction, red ones count against it. One document per first label. "
        "Small numbers: training points of the label."
    )
    return f'<p class="note">{note}</p>\n' + "\n".join(map(_document, documents))


def _document(document: Document) -> str:
    guesses = "".join(
        f'<li class="{"right" if guess.right else "wrong"}"><b>{_bar(guess.score)}</b>{_label(guess.label)}</li>'
        for guess in document.guesses
    )
    missed = "".join(
        f"<li><b>{f'rank {miss.rank}' if miss.rank else f'beyond {LENGTH}'}</b>{_label(miss.label)}</li>"
        for miss in document.missed[:8]
    )
    more = f"<li>and {len(document.missed) - 8} more</li>" if len(document.missed) > 8 else ""
    missed = f'<div><h4>missed</h4><ul class="missed">{missed}{more}</ul></div>' if missed else ""
    return (
        f"<article>\n<h3>Point {document.row:,} <span>nDCG@5 {document.quality:.0f}</span></h3>\n{_content(document)}\n"
        f'<div class="said"><div><h4>predicted</h4><ul>{guesses}</ul></div>{missed}</div>\n</article>'
    )


def _bar(score: float) -> str:
    return f'<i style="width:{100 * score:.0f}%"></i>{score:.2f}'


def _label(label: Label) -> str:
    text = f" <em>{escape(shortened(label.text, 80))}</em>" if label.text else ""
    return f"<span>{escape(label.name)}{text}&nbsp;<small>{label.points:,}</small></span>"


def _content(document: Document) -> str:
    """Return the text, with marks on words for and against the first prediction; without a text, the features."""
    if document.text is not None and any(reason.places for reason in document.reasons):
        return f"<blockquote>{marked(document.text, document.reasons)}</blockquote>"
    if document.text is not None:
        return f"<blockquote>{escape(shortened(document.text, LONGEST)) or '(empty text)'}</blockquote>"
    if not document.reasons:
        return '<p class="features">No text and no features.</p>'
    most = max(abs(reason.weight) for reason in document.reasons) or 1
    marks = " ".join(_mark(reason.term, reason.weight / most) for reason in document.reasons)
    return f'<p class="features">No text; features with the largest weights: {marks}</p>'


def marked(text: str, reasons: Iterable[Reason]) -> str:
    """Return the beginning of a text as HTML; marks show each word's weight relative to the largest."""
    weights, beginning = np.zeros(len(text)), shortened(text, LONGEST)
    for reason in reasons:
        for start, end in reason.places_in(""):
            weights[start:end] += reason.weight
    weights /= np.abs(weights).max(initial=0) or 1
    pieces = groupby(zip(beginning, weights.round(1).tolist(), strict=False), key=lambda pair: pair[1])
    return "".join(_mark("".join(character for character, _ in piece), weight) for weight, piece in pieces)


def _mark(text: str, weight: float) -> str:
    if abs(weight) < 0.1 or not text.strip():
        return escape(text)
    return f'<mark class="{"for" if weight > 0 else "against"}" style="--w:{abs(weight):.1f}">{escape(text)}</mark>'


def _confusions(confusions: Sequence[Confusion]) -> str:
    if not confusions:
        return "<p>None: no wrong label was predicted instead of a right one.</p>"
    rows = [[_label(c.predicted), _label(c.right), f"{c.times:,}", f"{100 * c.times / c.of:.0f} %"] for c in confusions]
    note = (
        "Of a point with n labels, the top n predictions count: each wrong one is paired with each missing label. "
        "Last column: share of the points with the right label."
    )
    table = _table(["predicted", "instead of", "times", "of its points"], rows, html=True)
    return f'<p class="note">{note}</p>\n{table}'


def _settings(dataset: Dataset, about: Mapping[str, Any]) -> str:
    sizes = [[name, f"{len(part):,}", f"{part.Y.nnz / max(len(part), 1):.1f}"] for name, part in dataset.parts.items()]
    seen = dataset.label_counts
    training = about["training"]
    facts = [
        ["model", about["model"]],
        ["preset", about["chosen"]["preset"]],
        ["chosen because", about["chosen"]["why"]],
        ["seed", str(about["tagger"]["seed"])],
        ["features", f"{about['sizes']['features']:,}"],
        ["labels", f"{about['sizes']['labels']:,}"],
        ["labels without training points", f"{int((seen == 0).sum()):,}"],
        *([["best epoch", str(training["best_epoch"] + 1)]] if training["best_epoch"] >= 0 else []),
        ["interrupted by the user", "yes"] if training["interrupted"] else ["finished", "yes"],
        ["zipfel", about["zipfel"]],
        *([name, value] for name, value in about["versions"].items()),
        ["checksum", about["sha256"][:16]],
    ]
    used = about.get("text", {"text": about["tagger"]["text"], "trials": ()})  # older models have no such entry
    text, trials = used["text"] or {}, [Trial(**values) for values in used["trials"]]
    tried = [[str(trial), "kept" if trial.kept else ""] for trial in trials]
    tables = [
        _table(["part", "points", "labels per point"], sizes, dataset.name or "data"),
        _table(["", ""], facts, "Run"),
        _table(["", ""], [[key, _value(value)] for key, value in about["settings"].items()], "Model"),
        _table(["", ""], [[key, _value(value)] for key, value in text.items()], "Text") if text else "",
        _table(["change of text features (gain)", ""], tried, "Tried on held-out points") if tried else "",
    ]
    return f'<div class="columns">{"".join(tables)}</div>'


def _value(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _figure(caption: str, draw: Callable[..., None], *values: Any) -> str:
    return f"<figure>{plots.inline_svg(draw, *values)}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", html: bool = False) -> str:
    """Return an HTML table.  html: the cells are HTML already, else text to escape."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    head = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if html else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"
