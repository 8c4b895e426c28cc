"""A corpus of labelled texts, and how it becomes a data set in LF format: split, rare labels, filter pairs, README."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from zipfel.data.formats.files import json_line, new_file

LARGEST = 60_000  # points; of a larger corpus, those with the smallest hashes are taken
TEST_SHARE = 0.2
LEAST_COUNT = 2  # training points of a label


class Point(NamedTuple):
    """A text with the names of its labels."""

    uid: str
    title: str
    content: str
    labels: frozenset[str]


class Corpus(NamedTuple):
    """Points with distinct uids, and the texts of labels by name; a label without a text has its name as text."""

    points: Sequence[Point]
    label_texts: Mapping[str, str]


class Parts(NamedTuple):
    """A corpus after the split: every label has LEAST_COUNT training points, and every point has a label."""

    train: list[Point]
    test: list[Point]
    labels: list[str]


def split(points: Iterable[Point], largest: int = LARGEST) -> Parts:
    """Split by a hash of the uid, and drop rare labels, and points that have no other."""
    taken = heapq.nsmallest(largest, points, key=lambda point: _hash("sample", point.uid))
    taken.sort(key=lambda point: point.uid)
    for first, second in pairwise(taken):
        if first.uid == second.uid:
            raise ValueError(f"two points have the uid {first.uid!r}")
    train = [point for point in taken if _hash("split", point.uid) >= TEST_SHARE]
    test = [point for point in taken if _hash("split", point.uid) < TEST_SHARE]
    counts = Counter(label for point in train for label in point.labels)
    kept = frozenset(label for label, count in counts.items() if count >= LEAST_COUNT)
    return Parts(_with_labels(train, kept), _with_labels(test, kept), sorted(kept))


def _with_labels(points: Iterable[Point], kept: frozenset[str]) -> list[Point]:
    reduced = (point._replace(labels=point.labels & kept) for point in points)
    return [point for point in reduced if point.labels]


def write(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Write a corpus in LF format, and return its sizes."""
    parts = split(corpus.points)
    folder.mkdir(parents=True, exist_ok=True)
    ids = {label: number for number, label in enumerate(parts.labels)}
    with new_file(folder / "lbl.json.gz") as out:
        for label in parts.labels:
            out.write(json_line({"uid": label, "title": corpus.label_texts.get(label, label)}))
    filtered = 0
    for prefix, name, points in (("trn", "train", parts.train), ("tst", "test", parts.test)):
        with new_file(folder / f"{prefix}.json.gz") as out:
            for point in points:
                targets = sorted(ids[label] for label in point.labels)
                row = {"uid": point.uid, "title": point.title, "content": point.content, "target_ind": targets}
                out.write(json_line(row))
        pairs = [f"{row} {ids[point.uid]}\n" for row, point in enumerate(points) if point.uid in ids]
        filtered += len(pairs)
        with new_file(folder / f"filter_labels_{name}.txt") as out:
            out.write("".join(pairs).encode())
    return sizes(parts) | {"filter_pairs": filtered}


def sizes(parts: Parts) -> dict[str, Any]:
    """Return counts of points and labels, and mean labels, words (split at spaces) and characters of a point."""
    points = parts.train + parts.test
    texts = [f"{point.title} {point.content}".strip() for point in points]
    return {
        "train": len(parts.train),
        "test": len(parts.test),
        "labels": len(parts.labels),
        "labels_a_point": round(sum(len(point.labels) for point in points) / max(1, len(points)), 1),
        "words_a_point": round(sum(len(text.split()) for text in texts) / max(1, len(points)), 1),
        "characters_a_point": round(sum(map(len, texts)) / max(1, len(points)), 1),
    }


def _hash(purpose: str, uid: str) -> float:
    """Return a number in [0, 1) that depends on these two texts only."""
    digest = hashlib.blake2b(f"{purpose} {uid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
