"""The page: one HTML file without scripts or anything from elsewhere, for the screen and for paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from zipfel.data.dataset import Dataset
from zipfel.explain import Reason
from zipfel.report import plots
from zipfel.report.documents import JUDGED, LENGTH, Confusion, Document, Label
from zipfel.report.findings import Findings
from zipfel.report.style import CSS
from zipfel.tagger import model_presets

LONGEST = 700  # characters of a text that are shown
HEADLINE = ("P@1", "P@5", "nDCG@5", "PSP@5", "coverage@5")


def page(found: Findings, dataset: Dataset, about: Mapping[str, Any]) -> str:
    """Return the page for what was found of a model; `about` is its `model.json`."""
    name = dataset.name or "data"
    title = f"{about['model']} on {name}"
    body = [
        _head(found, dataset, about),
        _section("Figures", _figures(found)),
        _section("Rare and frequent labels", _frequencies(found)),
        _section("How sure it may be", _certainty(found)),
        _section("Worst documents", _documents(found.worst, "Lowest nDCG@5, among equals the surest errors first.")),
        _section("Best documents", _documents(found.best, "Highest nDCG@5, among equals those with the most labels.")),
        _section("Most confused labels", _confusions(found.confusions)),
        _section("Settings", _settings(found, dataset, about)),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f'<section class="{title.split()[0].lower()}">\n<h2>{title}</h2>\n{content}\n</section>'


def _head(found: Findings, dataset: Dataset, about: Mapping[str, Any]) -> str:
    sizes = f"{found.report.points:,} {found.part} points, {found.report.labels:,} labels"
    figures = "".join(
        f"<div><dd>{found.report.values[name]:.1f}</dd><dt>{name}</dt></div>"
        for name in HEADLINE
        if name in found.report.values
    )
    return (
        f"<header>\n<h1>{escape(about['model'])} <span>on</span> {escape(dataset.name or 'data')}</h1>\n"
        f'<p class="lead">{escape(_made(about))} · {sizes}</p>\n<dl class="headline">{figures}</dl>\n</header>'
    )


def _made(about: Mapping[str, Any]) -> str:
    """Return the preset, and the settings that differ from it."""
    preset = about["tagger"]["preset"]
    usual = dataclasses.asdict(model_presets(about["model"])[preset])
    changed = [f"{name} {_value(value)}" for name, value in about["settings"].items() if value != usual.get(name)]
    return f"preset {preset}" + (f" with {', '.join(changed)}" if changed else "")


def _figures(found: Findings) -> str:
    report = found.report
    ks = sorted({int(name.partition("@")[2]) for name in report.values})

    def rows(values: Mapping[str, float]) -> list[list[str]]:
        names = dict.fromkeys(name.partition("@")[0] for name in values)
        return [[name, *(f"{values[f'{name}@{k}']:.2f}" for k in ks)] for name in names]

    heads = ["", *(f"@{k}" for k in ks)]
    tables = _table(heads, [*rows(report.values), *rows(report.macro)], "In percent")
    if report.only_tail:
        caption = f"{report.only_tail_points:,} points that have only tail labels"
        tables += _table(heads, rows(report.only_tail), caption)
    note = (
        f"PSP, PSnDCG and PSR weigh rare labels up (A {report.propensity.A:g}, B {report.propensity.B:g}); macro "
        "figures are means over labels; coverage is the share of labels found at least once."
    )
    return f'<div class="columns">{tables}</div>\n<p class="note">{note}</p>\n' + _figure(
        plots.curves(found), f"Precision, recall and coverage of the first 1 to {len(found.curves['P'])} predictions."
    )


def _frequencies(found: Findings) -> str:
    bins = found.report.bins
    rows = [
        [name, f"{piece.labels:,}", f"{piece.occurrences:,}", f"{piece.contribution:.2f}", f"{share:.1f}"]
        for name, piece, share in zip(plots.bin_names(bins), bins, found.covered, strict=True)
    ]
    table = _table(["training points a label has", "labels", "occurrences", "part of P@5", "labels found, %"], rows)
    return (
        '<div class="pair">'
        + _figure(plots.contributions(bins), "What labels of each frequency contribute to P@5: the bars add up to it.")
        + _figure(plots.covered(found.covered, bins), "Coverage: of the labels that occur, those found in a top 5.")
        + f"</div>\n{table}\n"
        + '<p class="note">Bins hold about equally many training occurrences, the rarest labels first.</p>'
    )


def _certainty(found: Findings) -> str:
    error = f"Mean distance from the diagonal, over the first {JUDGED} predictions: {found.reliability.error:.1f} %."
    return (
        '<div class="pair">'
        + _figure(
            plots.reliability(found.reliability), f"Reliability: on the diagonal a score is a probability. {error}"
        )
        + _figure(plots.shortlist(found.shortlist), _shortlist_caption(found))
        + "</div>"
    )


def _shortlist_caption(found: Findings) -> str:
    if found.shortlist.of_points:
        return "Recall of the shortlist: true labels that the nearest points have; the line is how many points vote."
    if found.shortlist.width is None:
        return "Recall against the number of candidates. The model looks at all labels: it has no shortlist."
    return "Recall of the shortlist against its width; the line is what the model looks at to rank."


def _documents(documents: Sequence[Document], note: str) -> str:
    note += (
        " What is marked speaks for the first prediction, or against it in red; of each first label one document. "
        "Small figures are training points."
    )
    return f'<p class="note">{note}</p>\n' + "\n".join(map(_document, documents))


def _document(document: Document) -> str:
    guesses = "".join(
        f'<li class="{"right" if guess.right else "wrong"}"><b>{_bar(guess.score)}</b>{_label(guess.label)}</li>'
        for guess in document.guesses
    )
    missed = "".join(
        f"<li><b>{f'place {miss.place}' if miss.place else f'beyond {LENGTH}'}</b>{_label(miss.label)}</li>"
        for miss in document.missed[:8]
    )
    more = f"<li>and {len(document.missed) - 8} more</li>" if len(document.missed) > 8 else ""
    missed = f'<div><h4>not among them</h4><ul class="missed">{missed}{more}</ul></div>' if missed else ""
    return (
        f"<article>\n<h3>Point {document.row:,} <span>nDCG@5 {document.quality:.0f}</span></h3>\n{_content(document)}\n"
        f'<div class="said"><div><h4>predicted</h4><ul>{guesses}</ul></div>{missed}</div>\n</article>'
    )


def _bar(score: float) -> str:
    return f'<i style="width:{100 * score:.0f}%"></i>{score:.2f}'


def _label(label: Label) -> str:
    text = label.text if len(label.text) <= 80 else label.text[:79] + "…"
    text = f" <em>{escape(text)}</em>" if text else ""
    return f"<span>{escape(label.name)}{text}&nbsp;<small>{label.points:,}</small></span>"


def _content(document: Document) -> str:
    """Return the text with the words marked that speak for or against the first prediction; or its features."""
    if document.text is not None and any(reason.places for reason in document.reasons):
        return f"<blockquote>{marked(document.text, document.reasons)}</blockquote>"
    if document.text is not None:
        return f"<blockquote>{escape(_cut(document.text)) or 'an empty text'}</blockquote>"
    if not document.reasons:
        return '<p class="features">No text, and no features.</p>'
    most = max(abs(reason.weight) for reason in document.reasons) or 1
    shown = " ".join(_mark(reason.term, reason.weight / most) for reason in document.reasons)
    return f'<p class="features">No text; features that count most: {shown}</p>'


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def marked(text: str, reasons: Iterable[Reason]) -> str:
    """Return the beginning of a text as HTML, each word marked by its weight against the largest."""
    weights, shown = np.zeros(len(text)), _cut(text)
    for reason in reasons:
        for start, end in reason.places:
            weights[start:end] += reason.weight
    weights /= np.abs(weights).max(initial=0) or 1
    pieces = groupby(zip(shown, weights.round(1).tolist(), strict=False), key=lambda pair: pair[1])
    return "".join(_mark("".join(character for character, _ in piece), weight) for weight, piece in pieces)


def _mark(text: str, weight: float) -> str:
    if abs(weight) < 0.1 or not text.strip():
        return escape(text)
    return f'<mark class="{"for" if weight > 0 else "against"}" style="--w:{abs(weight):.1f}">{escape(text)}</mark>'


def _confusions(confusions: Sequence[Confusion]) -> str:
    if not confusions:
        return "<p>None: no wrong label stands where a right one should.</p>"
    rows = [[_label(c.predicted), _label(c.right), f"{c.times:,}", f"{100 * c.times / c.of:.0f} %"] for c in confusions]
    note = (
        "Of a point with n labels the first n predictions are looked at: each wrong one, with each label that is not "
        "there. The last column is the share of the points that have the right label."
    )
    table = _table(["predicted", "where this was right", "times", "of its points"], rows, html=True)
    return f'<p class="note">{note}</p>\n{table}'


def _settings(found: Findings, dataset: Dataset, about: Mapping[str, Any]) -> str:
    sizes = [[name, f"{len(part):,}", f"{part.Y.nnz / max(len(part), 1):.1f}"] for name, part in dataset.parts.items()]
    seen = dataset.label_counts
    training = about["training"]
    facts = [
        ["model", about["model"]],
        ["preset", about["tagger"]["preset"]],
        ["seed", str(about["tagger"]["seed"])],
        ["features", f"{about['sizes']['features']:,}"],
        ["labels", f"{about['sizes']['labels']:,}"],
        ["labels without a training point", f"{int((seen == 0).sum()):,}"],
        *([["best epoch", str(training["best_epoch"] + 1)]] if training["best_epoch"] >= 0 else []),
        ["stopped early by hand", "yes"] if training["interrupted"] else ["finished", "yes"],
        ["zipfel", about["zipfel"]],
        *([name, value] for name, value in about["versions"].items()),
        ["checksum", about["sha256"][:16]],
    ]
    text = about["tagger"]["text"] or {}
    tables = [
        _table(["part", "points", "labels a point"], sizes, dataset.name or "data"),
        _table(["", ""], facts, "Run"),
        _table(["", ""], [[key, _value(value)] for key, value in about["settings"].items()], "Model"),
        _table(["", ""], [[key, _value(value)] for key, value in text.items()], "Text") if text else "",
    ]
    return f'<div class="columns">{"".join(tables)}</div>'


def _value(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", html: bool = False) -> str:
    """Return a table; what its cells hold is text, unless it is said to be HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    head = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if html else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"
