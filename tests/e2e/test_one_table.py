"""One table, three doors: a model remembers its columns, and Python, command line and service answer alike."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import zipfel
from zipfel.data.formats import TableSettings
from zipfel.data.formats.table import with_others
from zipfel.data.formats.table_files import open_table, write_table
from zipfel.data.source import Source
from zipfel.errors import ConfigError
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings, Sources
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TOPICS = {"drucker": "toner papier tray druck", "netz": "wifi kabel router lan", "post": "mail spam brief postfach",
          "büro": "stuhl tisch lampe tür", "konto": "login kennwort zugang sperre"}  # fmt: skip
Row = dict[str, str]


def tickets(count: int, seed: int) -> list[Row]:
    """Return rows whose title speaks of one tag and whose body speaks mostly of another, so that weights matter."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        own, other = draw.sample(sorted(TOPICS), 2)
        title = " ".join(draw.choices(TOPICS[own].split(), k=2))
        body = " ".join(draw.choices(TOPICS[other].split(), k=4) + draw.choices(TOPICS[own].split(), k=2))
        tags = f"{own}|{other}" if draw.random() < 0.3 else own
        rows.append({"id": f"T{seed}-{number}", "title": title, "body": f"{body} für {number}", "themen": tags})
    return rows


def written(path: Path, rows: list[Row], encoding: str = "cp1252") -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(text.getvalue().encode(encoding))
    return path


COLUMNS = ["--text", "title,body", "--labels", "themen", "--sep", "|", "--encoding", "cp1252"]
SETTINGS = ["--model", "glas", "--set", "dimension=16", "--set", "epochs=6", "--set", "min_steps=1", "--device", "cpu",
            "--set", "learning_rate=0.01"]  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("table") / "tickets.csv", tickets(500, 1))


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("later") / "later.csv", tickets(80, 2))


@pytest.fixture(scope="module")
def model(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train at the command line, with a seed of its own, on a table whose columns must be named."""
    from zipfel.cli.main import main

    folder, patch = tmp_path_factory.mktemp("run") / "run", pytest.MonkeyPatch()
    words = ["train", str(table), *COLUMNS, *SETTINGS, "--seed", "3", "--field-weights", "title:5"]
    with patch.context() as context:
        context.setattr(sys, "argv", ["zipfel", *words, "--out", str(folder)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return folder


def tag_at_service(folder: Path, **body: Any) -> httpx.Response:
    return at_service(folder, "/tag", body)


def at_service(folder: Path, path: str, body: dict[str, Any]) -> httpx.Response:
    async def ask() -> httpx.Response:
        service = Service(Catalog(Sources({"m": [folder]})), ServeSettings(), Measures())
        service.start()
        transport = httpx.ASGITransport(Gate(built(service), service.measures, None), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post(path, json=body)
        await service.stop()
        return answer

    return asyncio.run(ask())


def pairs(tags: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(tag["label"], tag["score"]) for tag in tags]


def test_python_command_line_and_service_answer_alike_and_as_evaluate_judged(zipfel_command, model, later, tmp_path):
    rows = tickets(80, 2)
    documents = [{"title": row["title"], "body": row["body"]} for row in rows]
    tagger = Tagger.load(model)
    python = [[(tag.label, tag.score) for tag in tags] for tags in tagger.predict(documents, 3)]
    by_field = {name: [row[name] for row in documents] for name in ("title", "body")}
    assert [[tuple(tag) for tag in tags] for tags in tagger.predict(by_field, 3)] == python

    outcome = zipfel_command("predict", model, "--input", later, "--k", 3, "--json")
    assert outcome.code == 0, outcome.err
    assert "note: text from title, body" in outcome.err
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [pairs(line["tags"]) for line in lines] == python
    assert [{name: line[name] for name in ("id", "title", "body")} for line in lines] == [
        {name: row[name] for name in ("id", "title", "body")} for row in rows
    ]

    answer = tag_at_service(model, texts=documents, k=3)
    assert answer.status_code == 200, answer.text
    assert [pairs(tags) for tags in answer.json()["tags"]] == python

    outcome = zipfel_command("evaluate", model, later, "--json", tmp_path / "figures.json")
    assert outcome.code == 0, outcome.err
    assert "note: text from title, body; labels from themen, split at '|'; encoding cp1252" in outcome.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    right = [answers[0][0] in row["themen"].split("|") for row, answers in zip(rows, python, strict=True)]
    assert figures["points"] == 80
    assert figures["P@1"] == pytest.approx(100 * np.mean(right), abs=1e-6)
    joined = tagger.predict([f"{row['title']} {row['body']}" for row in rows], 3)
    assert [[tuple(tag) for tag in tags] for tags in joined] != python  # so that the fields decide


def test_reasons_are_those_of_the_fields_at_each_door(zipfel_command, model):
    """The title counts five times: reasons of the joined text would be others."""
    document = {"title": "Toner für toner", "body": "kabel für toner 👍 router"}
    tagger = Tagger.load(model)
    best = tagger.predict([document], 1)[0][0]
    python = tagger.explain(document, best.label)
    assert {reason.term: reason.places for reason in python} == {
        "toner": {"title": [(0, 5), (10, 15)], "body": [(10, 15)]},
        "für": {"title": [(6, 9)], "body": [(6, 9)]},
        "kabel": {"body": [(0, 5)]},
        "router": {"body": [(18, 24)]},
    }
    row = tagger.features_.transform({name: [text] for name, text in document.items()})
    weights = tagger.predictor_.explained(row, tagger.classes_.index(best.label)).tolist()
    terms = [tagger.features_.terms[term] for term in row.indices]
    assert {reason.term: reason.weight for reason in python} == dict(zip(terms, weights, strict=True))
    joined = {reason.term: reason.weight for reason in tagger.explain("\n".join(document.values()), best.label)}
    assert joined["kabel"] != pytest.approx(dict(zip(terms, weights, strict=True))["kabel"], rel=0.05)

    wanted = json.loads(json.dumps([reason._asdict() for reason in python]))
    words = [word for name, text in document.items() for word in ("--field", f"{name}={text}")]
    found = json.loads(zipfel_command("explain", model, *words, "--json").out)
    assert (found["text"], found["label"], found["reasons"]) == (document, best.label, wanted)
    shown = zipfel_command("explain", model, *words).out.splitlines()
    assert shown[:2] == ["title: Toner für toner", "body: kabel für toner 👍 router"]
    answer = at_service(model, "/explain", {"text": document, "label": best.label})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["reasons"], answer.json()["score"]) == (wanted, best.score)


def test_a_report_explains_its_documents_by_field(model, later):
    from zipfel.report.documents import Tagged, documents

    tagger = Tagger.load(model)
    dataset = zipfel.read(later, TableSettings(labels="themen", sep="|", encoding="cp1252"))
    dataset = tagger.labels_.extended(dataset).aligned(dataset)
    points = dataset.train
    worst = documents(Tagged(dataset, points, tagger.rank(points.texts, 5)), tagger)[1][0]
    texts = {name: column[worst.row] for name, column in points.texts.items()}
    assert worst.text == f"{texts['title']}\n{texts['body']}"
    expected = {reason.term: reason.weight for reason in tagger.explain(texts, worst.guesses[0].label.name)}
    assert {reason.term: reason.weight for reason in worst.reasons} == expected
    for reason in worst.reasons:
        assert {worst.text[start:end].lower() for start, end in reason.places} == {reason.term}


def test_wrong_fields_of_an_explanation_are_refused(zipfel_command, model):
    message = "the model has no text field 'titel'; did you mean 'title'?"
    for words, problem in (
        (["--field", "titel=a"], message),
        (["--field", "toner"], "--field must look like title='no paper'; found 'toner'"),
        (["--field", "title=a", "--field", "title=b"], "--field title is given twice"),
        (["a text", "--field", "title=b"], "give either a text or its fields with --field"),
        ([], "give either a text or its fields with --field"),
    ):
        refused = zipfel_command("explain", model, *words)
        assert (refused.code, refused.err) == (2, f"error: {problem}\n")
    answer = at_service(model, "/explain", {"text": {"titel": "a"}, "label": "netz"})
    assert (answer.status_code, answer.json()["error"]) == (404, message)
    answer = at_service(model, "/explain", {"text": {"title": 1}, "label": "netz"})
    assert (answer.status_code, answer.json()["error"]) == (400, "text: Field 'title' should be a valid string")
    answer = at_service(model, "/explain", {"text": 1, "label": "netz"})
    assert answer.json()["error"] == "text: Input should be a valid string, or an object of texts by field"


def test_the_columns_survive_saving_and_a_missing_field_is_empty(model, tmp_path):
    tagger = Tagger.load(model)
    columns = tagger.source_.columns
    assert (columns.text, columns.labels, columns.sep, columns.encoding) == (("title", "body"), "themen", "|", "cp1252")
    tagger.save(tmp_path / "copy")
    assert Tagger.load(tmp_path / "copy").source_.columns == columns
    whole = tagger.predict([{"body": "", "title": "toner"}, {"title": "", "body": ""}], 3)
    assert tagger.predict([{"title": "toner"}, {}], 3) == whole


def test_unknown_fields_are_refused_at_each_door(zipfel_command, model, table, tmp_path):
    message = "the model has no text field 'titel'; did you mean 'title'?"
    with pytest.raises(ConfigError, match="no text field 'titel'"):
        Tagger.load(model).predict({"titel": ["a"]})
    answer = tag_at_service(model, texts=[{"titel": "a"}])
    assert (answer.status_code, answer.json()["error"]) == (404, message)  # as an unknown label
    answer = tag_at_service(model, texts=["a", {"title": "a"}])
    assert answer.json()["error"] == "texts: Input should be all texts, or all objects of texts by field"
    answer = tag_at_service(model, texts=[{"title": 1}])
    assert answer.json()["error"] == "texts[0]: Field 'title' should be a valid string"
    refused = zipfel_command("predict", model, "--input", table, "--text", "titel,body")
    assert (refused.code, refused.err.splitlines()[-1]) == (2, f"error: {message}")
    other = written(tmp_path / "other.csv", [{"title": "a", "text": "b"}])
    refused = zipfel_command("predict", model, "--input", other)
    assert refused.code == 2
    assert "no column 'body': the model reads title, body; name the text columns with --text" in refused.err
    assert zipfel_command("predict", model, "--input", other, "--text", "title").err == (
        "note: text from title; body left empty\n"
    )
    assert zipfel_command("predict", model, "--input", other, "--text", "text").code == 0  # a text without fields


def test_options_override_what_the_model_remembers(zipfel_command, model, tmp_path):
    rows = [
        {"title": row["title"], "body": row["body"], "tags": row["themen"].replace("|", ";")} for row in tickets(40, 4)
    ]
    path = written(tmp_path / "new.csv", rows, "utf-8")
    refused = zipfel_command("evaluate", model, path)
    assert refused.code == 2
    assert "no column 'themen'" in refused.err
    outcome = zipfel_command("evaluate", model, path, "--labels", "tags", "--sep", ";", "--encoding", "utf-8")
    assert outcome.code == 0, outcome.err
    assert "40 points" in outcome.out


# --- Leaks ------------------------------------------------------------------------------------------------------------


def figures_of(zipfel_command: Any, tmp_path: Path, *words: object) -> tuple[dict[str, Any], str]:
    outcome = zipfel_command("evaluate", *words, "--json", tmp_path / "figures.json")
    assert outcome.code == 0, outcome.err
    return json.loads((tmp_path / "figures.json").read_text()), outcome.out


@pytest.mark.parametrize("words", [[], ["--seed", "3"], ["--seed", "7"], ["--holdout", "0.5"]])
def test_points_of_training_are_never_judged_in_silence(zipfel_command, model, table, tmp_path, words):
    figures, out = figures_of(zipfel_command, tmp_path, model, table, *words)
    assert figures["points"] + figures["points left out"] == 500
    learned = f"{figures['points left out']} points were used in training and are left out"
    assert out.startswith(learned)
    dataset = zipfel.read(table, TableSettings(text=("title", "body"), labels="themen", sep="|", encoding="cp1252"))
    held_out = zipfel.data.splits.hold_out(dataset, 0.2, seed=3).test
    ranking = Tagger.load(model).rank(held_out.texts, 1)
    assert figures["points"] == len(held_out)
    right = [held_out.Y[[row]].toarray()[0, label] for row, label in enumerate(ranking.ids[:, 0])]
    assert figures["P@1"] == pytest.approx(100 * np.mean(right), abs=1e-4)


def test_all_of_a_file_is_judged_where_that_is_asked_and_the_first_line_warns(zipfel_command, model, table, tmp_path):
    figures, out = figures_of(zipfel_command, tmp_path, model, table, "--holdout", "0")
    assert figures["points"] == 500
    count = figures["points used in training"]
    assert 380 <= count <= 420
    assert out.startswith(f"warning: {count} of 500 points ({count / 500:.1%}) were used in training")
    known = tickets(500, 1)
    seen = Tagger.load(model).source_
    part = zipfel.Part(np.zeros((500, 1)), texts={name: [row[name] for row in known] for name in ("title", "body")})
    only = [row for row, learned in zip(known, seen.learned(part), strict=True) if learned]
    refused = zipfel_command("evaluate", model, written(tmp_path / "known.csv", only))
    assert refused.code == 2
    assert f"the model was trained on all {count} points of known" in refused.err


def test_a_test_file_with_points_of_training_is_judged_and_the_first_line_warns(zipfel_command, model, tmp_path):
    (tmp_path / "folder").mkdir()
    known, new = tickets(500, 1), tickets(20, 5)
    written(tmp_path / "folder" / "train.csv", known)
    written(tmp_path / "folder" / "test.csv", known + new)
    figures, out = figures_of(zipfel_command, tmp_path, model, tmp_path / "folder")
    assert figures["points"] == 520
    assert out.startswith(f"warning: {figures['points used in training']} of 520 points")


def test_points_of_a_later_fit_are_remembered_too():
    texts, tags = ["red apple", "green pear", "fast car", "slow car"] * 5, [["a"], ["a"], ["b"], ["b"]] * 5
    tagger = Tagger("dxml", settings={"epochs": 2, "dimension": 8}, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(texts, tags).partial_fit(["blue car"], [["b"]])
    part = zipfel.Part(np.zeros((3, 1)), texts={"text": ["red apple", "blue car", "blue pear"]})
    assert tagger.source_.learned(part).tolist() == [True, True, False]
    assert tagger.source_.points == 21


# --- Any later file ---------------------------------------------------------------------------------------------------


def test_a_later_file_may_have_new_labels_and_lack_others(zipfel_command, model, tmp_path):
    rows = [row for row in tickets(60, 6) if "konto" not in row["themen"]]
    rows[0]["themen"], rows[1]["themen"] = "neu|drucker", "neu|anders"
    path = written(tmp_path / "later.csv", rows)
    figures, out = figures_of(zipfel_command, tmp_path, model, path)
    total = sum(len(row["themen"].split("|")) for row in rows)
    assert figures["points"] == len(rows)
    assert (figures["unknown labels"], figures["tags of unknown labels"]) == (2, 3)
    assert out.startswith(f"2 labels are unknown to the model: 3 of {total} tags, which count as missed")
    tagger = Tagger.load(model)
    tags = tagger.predict([{"title": row["title"], "body": row["body"]} for row in rows], 5)
    found = [len({tag.label for tag in got} & {*row["themen"].split("|")}) for got, row in zip(tags, rows, strict=True)]
    shares = [n / len(row["themen"].split("|")) for n, row in zip(found, rows, strict=True)]
    assert figures["R@5"] == pytest.approx(100 * np.mean(shares), abs=1e-4)
    seen, _ = figures_of(zipfel_command, tmp_path, model, path, "--min-label-count", "1")
    assert "unknown labels" not in seen


def test_labels_that_a_model_lacks_are_in_the_report_and_count_as_missed(zipfel_command, model, tmp_path):
    rows = tickets(60, 6)
    rows[0]["themen"], rows[1]["themen"] = "neu|drucker", "neu|anders"
    path = written(tmp_path / "later.csv", rows)
    labels = tmp_path / "labels.csv"
    outcome = zipfel_command("evaluate", model, path, "--per-label", labels, "--threshold", "0.3")
    assert outcome.code == 0, outcome.err
    with labels.open() as file:
        support = {row["label"]: (row["support"], row["recall"], row["threshold"]) for row in csv.DictReader(file)}
    assert support["neu"] == ("2", "0.0000", "")
    assert support["drucker"][2] == "0.3"
    assert sum(int(count) for count, *_ in support.values()) == sum(len(row["themen"].split("|")) for row in rows)
    assert "Tags with a score of at least 0.3\n" in outcome.out
    outcome = zipfel_command("report", model, path, "--out", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert "<td>neu</td><td></td><td>0.0000</td>" in (tmp_path / "page.html").read_text()


def test_a_file_of_other_labels_is_refused(zipfel_command, model, tmp_path):
    rows = [{**row, "themen": "fremd"} for row in tickets(10, 6)]
    refused = zipfel_command("evaluate", model, written(tmp_path / "other.csv", rows))
    assert refused.code == 2
    assert "none of the 1 labels of other is one of the model's 5; check the label column" in refused.err


def test_a_report_on_a_later_file(zipfel_command, model, later, tmp_path):
    outcome = zipfel_command("report", model, later, "--out", tmp_path / "report.html")
    assert outcome.code == 0, outcome.err
    figures, _ = figures_of(zipfel_command, tmp_path, model, later)
    assert f"80 points, P@1 {figures['P@1']:.2f}" in outcome.out


# --- Files and pipes --------------------------------------------------------------------------------------------------


def tagged_rows(model: Path) -> tuple[list[Row], list[list[tuple[str, float]]]]:
    """Return the rows of the later table, and the three best tags of each."""
    rows = tickets(80, 2)
    tags = Tagger.load(model).predict([{"title": row["title"], "body": row["body"]} for row in rows], 3)
    return rows, [[tuple(tag) for tag in row] for row in tags]


def read_csv(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_lines_of_standard_input_are_tagged(zipfel_command, monkeypatch, model, tmp_path):
    texts = ["toner und papier", "", "Postfach voll: Büro"]
    tags = Tagger.load(model).predict(texts, 2)

    def piped(content: bytes, *words: object) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return zipfel_command("predict", model, "-", "--k", 2, *words)

    content = ("\n".join(texts) + "\n").encode()
    outcome = piped(content, "--json", "--encoding", "utf-8")
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [line["text"] for line in lines] == texts
    assert [pairs(line["tags"]) for line in lines] == [[tuple(tag) for tag in row] for row in tags]
    assert piped(content.decode().encode("cp1252"), "--json").out == outcome.out  # the encoding of training
    assert piped(content, "--encoding", "utf-8", "--out", tmp_path / "tags.jsonl").code == 0
    assert (tmp_path / "tags.jsonl").read_text() == outcome.out
    refused = piped(b"\xff\n", "--encoding", "utf-8")
    assert refused.code == 2
    assert "standard input: not utf-8" in refused.err


def test_a_table_with_a_row_for_each_tag(zipfel_command, model, later, tmp_path):
    words = ["predict", model, "--input", later, "--k", 3, "--keep", "id", "--layout", "tidy"]
    assert zipfel_command(*words, "--out", tmp_path / "tags.csv").code == 0
    rows, tags = tagged_rows(model)
    got = read_csv(tmp_path / "tags.csv")
    assert list(got[0]) == ["id", "known", "rank", "label", "score"]
    wanted = [(row["id"], str(n), label) for row, own in zip(rows, tags, strict=True)
              for n, (label, _) in enumerate(own, start=1)]  # fmt: skip
    assert [(row["id"], row["rank"], row["label"]) for row in got] == wanted
    assert [float(row["score"]) for row in got] == pytest.approx([s for own in tags for _, s in own], rel=1e-5)


def test_a_table_with_all_tags_in_one_cell_can_be_read_as_data(zipfel_command, model, later, tmp_path):
    words = ["predict", model, "--input", later, "--k", 3, "--layout", "joined", "--out", tmp_path / "tags.csv"]
    assert zipfel_command(*words).code == 0
    rows, tags = tagged_rows(model)
    got = read_csv(tmp_path / "tags.csv")
    assert list(got[0]) == ["id", "title", "body", "known", "tags", "scores"]
    assert [row["tags"] for row in got] == ["|".join(label for label, _ in own) for own in tags]
    assert [len(row["scores"].split("|")) for row in got] == [3] * 80
    dataset = zipfel.read(tmp_path / "tags.csv", TableSettings(labels="tags", sep="|"))
    assert dataset.train.Y.nnz == 240
    assert list(dataset.train.texts["title"]) == [row["title"] for row in rows]


def test_tags_that_hold_every_separator_are_joined_as_json(zipfel_command, tmp_path):
    names = [["a;b"], ["c|d"]] * 5
    tagger = Tagger("glas", settings={"epochs": 2, "dimension": 8}, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(["red apple", "fast car"] * 5, names).save(tmp_path / "model")
    (tmp_path / "in.csv").write_text("text,tags\nred apple,x\n")
    words = ["predict", tmp_path / "model", "--input", tmp_path / "in.csv", "--layout", "joined"]
    assert zipfel_command(*words, "--out", tmp_path / "tags.csv").code == 0
    assert sorted(json.loads(read_csv(tmp_path / "tags.csv")[0]["tags"])) == ["a;b", "c|d"]


def test_parquet_keeps_columns_and_their_types(zipfel_command, monkeypatch, model, tmp_path):
    import pyarrow.parquet as parquet

    monkeypatch.setattr("zipfel.cli.parquet.BLOCK", 7)
    rows, tags = tagged_rows(model)
    items = [{**row, "id": n, "cost": n / 2 if n % 2 else n, "urgent": n == 3, "odd": None if n < 50 else [n]}
             for n, row in enumerate(rows)]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    words = ["predict", model, "--input", tmp_path / "in.jsonl", "--k", 3, "--out", tmp_path / "tags.parquet"]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    got = parquet.read_table(tmp_path / "tags.parquet").to_pydict()
    assert list(got) == ["id", "title", "body", "cost", "urgent", "odd", "known", "tags", "scores"]
    assert got["id"] == list(range(80))
    assert got["known"] == [True] * 80
    assert got["cost"][:3] == [0.0, 0.5, 2.0]
    assert got["urgent"][2:4] == [False, True]
    assert got["odd"][49:51] == [None, "[50]"]
    assert got["tags"] == [[label for label, _ in own] for own in tags]
    assert np.allclose(got["scores"], [[score for _, score in own] for own in tags])
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "tags.parquet"}


def test_a_chosen_threshold_is_printed(zipfel_command, model, later):
    tagger = Tagger.load(model)
    err = zipfel_command("predict", model, "--input", later, "--precision", "0.6", "--json").err
    assert f"note: threshold {tagger.choose_threshold(0.6):.6g} (precision 0.6 on held-out points)" in err
    err = zipfel_command("predict", model, "--input", later, "--best-f1", "--by-frequency", "--json").err
    three = ", ".join(f"{value:.6g}" for value in tagger.choose_threshold(None, True))
    assert f"note: threshold {three} for rare, medium and frequent labels (best micro-F1 on held-out points)" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep", "id,themen,tags"], "in.csv:1: no column 'tags'"),
        (["--layout", "long", "--out", "{tmp}/tags.csv"], "layout must be one of wide, tidy, joined; found 'long'"),
        (["--layout", "tidy", "--out", "{tmp}/tags.jsonl"], "--layout is for .csv files; found 'tags.jsonl'"),
        (["--out", "{tmp}/tags.csv", "--layout", "tidy"], "the input has a column 'rank', and so has the output"),
    ],
)
def test_bad_options_leave_nothing(zipfel_command, model, tmp_path, words, message):
    written(tmp_path / "in.csv", [{**row, "rank": "1"} for row in tickets(3, 2)])
    words = [word.format(tmp=tmp_path) for word in words]
    refused = zipfel_command("predict", model, "--input", tmp_path / "in.csv", *words)
    assert refused.code == 2
    assert message in refused.err
    assert {path.name for path in tmp_path.iterdir()} == {"in.csv"}


# --- Splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_split_keeps_columns_and_names(zipfel_command, tmp_path, ending):
    rows: list[dict[str, Any]] = [{**row, "cost": n, "note": None if n % 2 else f"Nr. {n}"}
                                  for n, row in enumerate(tickets(60, 8))]  # fmt: skip
    columns = ["--text", "title,body", "--labels", "themen", "--sep", "|"]
    source = tmp_path / f"in.{ending}"
    if ending == "csv":
        rows = [{name: "" if cell is None else str(cell) for name, cell in row.items()} for row in rows]
        written(source, rows, "utf-8")
    else:
        write_table({name: [row[name] for row in rows] for name in rows[0]}, source)
    outcome = zipfel_command("data", "split", source, tmp_path / "parts", *columns)
    assert outcome.code == 0, outcome.err
    got = []
    for part in ("train", "test", "validation"):
        table = open_table(tmp_path / "parts" / f"{part}.{ending}")
        assert sorted(table.columns) == sorted(rows[0])
        got += [dict(zip(table.columns, values, strict=True)) for _, values in table.rows(table.columns)]
    known = {row["id"]: row for row in rows}
    assert len(got) == len(known) == 60
    for row in got:
        tags = row.pop("themen")
        tags = json.loads(tags) if isinstance(tags, str) else tags
        before = dict(known[row["id"]])
        assert sorted(tags) == sorted(before.pop("themen").split("|"))
        assert row == before
    again = zipfel.read(tmp_path / "parts")  # without naming columns
    assert sorted(again.train.texts) == ["body", "title"]
    assert again.sizes.labels == 5
    outcome = zipfel_command("data", "split", tmp_path / "parts", tmp_path / "twice", "--validation", "0")
    assert outcome.code == 0, outcome.err
    assert sorted(open_table(tmp_path / "twice" / f"test.{ending}").columns) == sorted(rows[0])


# --- What a model does not know ---------------------------------------------------------------------------------------


def test_a_model_without_its_training_points_says_that_it_cannot_know_them(zipfel_command, model, later, tmp_path):
    tagger = Tagger.load(model)
    blueprint = replace(tagger.fitted_.blueprint, source=Source(tagger.source_.columns))
    tagger.fitted_ = replace(tagger.fitted_, blueprint=blueprint)
    tagger.save(tmp_path / "old")
    warning = "warning: the model does not know its training points (it was saved without them); if some are judged"
    for words in ([], ["--holdout", "0"]):
        _, out = figures_of(zipfel_command, tmp_path, tmp_path / "old", later, *words)
        assert out.startswith(warning)
    _, out = figures_of(zipfel_command, tmp_path, model, later)
    assert "does not know" not in out
    for name, told in (("old", True), (model, False)):
        path = tmp_path / "report.html"
        assert zipfel_command("report", tmp_path / name, later, "--out", path).code == 0
        assert (warning in path.read_text()) is told


def test_a_page_says_that_points_of_training_are_judged(zipfel_command, model, table, tmp_path):
    outcome = zipfel_command("report", model, table, "--holdout", "0", "--out", tmp_path / "report.html")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("warning: ")
    assert outcome.out.splitlines()[0] in (tmp_path / "report.html").read_text()


def test_the_case_of_columns_does_not_matter_in_later_files(zipfel_command, model, later, tmp_path):
    figures, _ = figures_of(zipfel_command, tmp_path, model, later)
    rows = [{name.title(): value for name, value in row.items()} for row in tickets(80, 2)]
    others, _ = figures_of(zipfel_command, tmp_path, model, written(tmp_path / "upper.csv", rows))
    assert {**others, "seconds": 0} == {**figures, "seconds": 0}


def test_a_split_of_tables_that_differ_in_case_repeats_no_column(zipfel_command, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder / "train.csv", tickets(40, 1), "utf-8")
    rows = [{name.upper(): value for name, value in row.items()} for row in tickets(10, 2)]
    written(folder / "test.csv", rows, "utf-8")
    columns = TableSettings(text=("title", "body"), labels="themen", sep="|")
    dataset = with_others(zipfel.read(folder, columns), folder, ".csv", columns)
    assert list(dataset.train.others) == ["id"]
    assert list(dataset.test.others) == ["ID"]
