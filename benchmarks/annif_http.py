"""An unmodified Annif tags with our models: python -m benchmarks.annif_http ANNIF [--data DATA] [--documents 1000].

ANNIF is the executable of an Annif in an environment of its own (`pip install annif`). Two models are trained and
served; Annif gets a project with `backend=http` for each, whose endpoint is the service, and an ensemble of both.
Compared are the tags that `annif index` writes with those of `POST /tag`; then `annif eval` judges all three. Annif's
own backends need data of NLTK that no package brings, so the ensemble has none of them.

Without --data, documents and labels are synthetic; with it, they are a data set with texts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.record import record
from benchmarks.serving import serving
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.labels import names_of
from zipfel.data.splits import Preparation, prepared
from zipfel.data.synthetic import Synthetic, make

LIMIT = 10  # tags of a document
METRICS = ("F1@5", "NDCG@10", "Precision@1")
MODELS = ("first", "second")
PROJECT = """
[{name}]
name={name}
language=en
backend=http
vocab=labels
endpoint={endpoint}
limit=100
"""
ENSEMBLE = """
[ensemble]
name=Ensemble
language=en
backend=ensemble
sources=first:2,second
vocab=labels
limit=100
"""


def uri(label: int) -> str:
    """Return the URI of a label."""
    return f"http://example.org/label/{label}"


def data_of(data: Path | None) -> Dataset:
    """Return a data set with train and test."""
    made = make(Synthetic(points=5000, labels=500, texts=True, tokens_per_point=15)) if data is None else read(data)
    if not made.train.texts:
        raise SystemExit(f"{data} has no texts")
    return prepared(made, Preparation())


def lines(part: Part) -> list[str]:
    """Return the documents of a part as short texts of Annif: text, tab, URIs."""
    joined = [" ".join(" ".join(row).split()) for row in zip(*(part.texts or {}).values(), strict=True)]
    rows = (part.Y[[row]].indices.tolist() for row in range(len(part)))
    return [
        f"{text}\t{' '.join(f'<{uri(label)}>' for label in labels)}\n"
        for text, labels in zip(joined, rows, strict=True)
    ]


def written(dataset: Dataset, count: int, folder: Path) -> list[str]:
    """Write train, test and vocabulary; return the texts of test."""
    names = [" ".join(name.split()) for name in names_of(dataset)]
    (folder / "labels.tsv").write_text("".join(f"<{uri(label)}>\t{name}\n" for label, name in enumerate(names)))
    (folder / "train.tsv").write_text("".join(lines(dataset.train)))
    test = dataset.parts["test"]
    tested = [line for line in lines(test.take(np.arange(min(len(test), 2 * count)))) if not line.endswith("\t\n")]
    tested = [line for line in tested if line[:1].strip() and not line.startswith("\t")][:count]
    (folder / "test.tsv").write_text("".join(tested))
    return [line.partition("\t")[0] for line in tested]


def ran(words: Sequence[str], folder: Path) -> str:
    """Run a command in a folder; stop with its output if it fails."""
    environment = {**os.environ, "ANNIF_DATADIR": str(folder / "data"), "PYTHONPATH": ""}
    if words[0] == sys.executable:
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def tags_of(port: int, texts: Sequence[str]) -> list[list[tuple[str, float]]]:
    """Return the tags of texts by POST /tag."""
    tags = []
    for start in range(0, len(texts), 100):
        body = json.dumps({"texts": texts[start : start + 100], "k": LIMIT}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/tag", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            tags += [[(tag["label"], tag["score"]) for tag in row] for row in json.load(answer)["tags"]]
    return tags


def same(ours: Sequence[tuple[str, float]], theirs: Sequence[dict[str, Any]]) -> bool:
    """Whether both have the same tags and scores, apart from the order of equal scores and those of 0."""
    own = {label: np.float32(score) for label, score in ours if score > 0}
    other = {hit["uri"]: np.float32(hit["score"]) for hit in theirs}
    return own.keys() == other.keys() and all(abs(own[label] - other[label]) < 1e-6 for label in own)


def judged(annif: str, project: str, folder: Path) -> dict[str, float]:
    """Return the metrics of a project by `annif eval`."""
    ran([annif, "eval", project, "test.tsv", "--limit", str(LIMIT), "--metrics-file", f"{project}.json"], folder)
    figures = json.loads((folder / f"{project}.json").read_text())
    return {name: round(figures[name], 4) for name in METRICS}


def compared(annif: str, folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Serve the models, let Annif use them, and return the figures."""
    with serving(str(folder / "first"), f"second={folder / 'second'}") as server:
        root = f"http://127.0.0.1:{server.port}/v1/projects"
        projects = [PROJECT.format(name=name, endpoint=f"{root}/{name}/suggest") for name in MODELS]
        (folder / "projects.cfg").write_text("".join([*projects, ENSEMBLE]))
        ran([annif, "load-vocab", "--language", "en", "labels", "labels.tsv"], folder)
        start = time.perf_counter()
        ran([annif, "index", "first", "test.tsv", "--limit", str(LIMIT), "--output", "out.jsonl"], folder)
        seconds = time.perf_counter() - start
        theirs = [json.loads(line)["results"] for line in (folder / "out.jsonl").read_text().splitlines()]
        ours = tags_of(server.port, texts)
        equal = sum(same(*pair) for pair in zip(ours, theirs, strict=True))
        evaluated = {project: judged(annif, project, folder) for project in (*MODELS, "ensemble")}
    return {"documents": len(texts), "same tags": equal, "seconds of annif index": round(seconds, 1), "eval": evaluated}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("annif")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--models", default="linear,glas")
    options = parser.parse_args()
    annif, kinds = str(Path(options.annif).absolute()), options.models.split(",")
    dataset = data_of(options.data)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        texts = written(dataset, options.documents, folder)
        train = [
            sys.executable,
            "-m",
            "zipfel",
            "train",
            "train.tsv",
            "--label-texts",
            "labels.tsv",
            "--language",
            "en",
        ]
        for name, kind in zip(MODELS, kinds, strict=True):
            ran([*train, "--out", name, "--model", kind, "--preset", "fast"], folder)
        figures = compared(annif, folder, texts)
        release = ran([annif, "--version"], folder).strip()
    record("annif_http", {"annif": release, "data": dataset.name, "models": kinds, **figures}, 0)


if __name__ == "__main__":
    main()
