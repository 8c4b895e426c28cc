"""A thesaurus on the command line: people see names, files hold URIs and names."""

from __future__ import annotations

import json

import pytest

THESAURUS = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix : <http://t.org/> .
:device a skos:Concept ; skos:prefLabel "devices"@en .
:laser a skos:Concept ; skos:prefLabel "laser printers"@en ; skos:altLabel "beamers; them"@en ; skos:broader :device .
:ink a skos:Concept ; skos:prefLabel "ink, and printers"@en ; skos:broader :device .
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "t.ttl").write_text(THESAURUS)
    rows = [f"beam {n}\t<http://t.org/laser>\nink drops {n}\t<http://t.org/ink>\n" for n in range(10)]
    (folder / "c.tsv").write_text("".join(rows))
    (folder / "in.csv").write_text("text\na beam\n")
    return folder


@pytest.fixture
def model(library, zipfel_command):
    if not (library / "run").exists():
        options = ("--label-texts", library / "t.ttl", "--language", "en", "--min-count", "1", "--model", "linear")
        outcome = zipfel_command("train", library / "c.tsv", "--out", library / "run", *options)
        assert outcome.code == 0, outcome.err
        assert "t.ttl: 3 concepts, names in language 'en'" in outcome.err
    return library / "run"


def test_predict_and_explain_show_names(zipfel_command, model):
    shown = zipfel_command("predict", model, "a beam", "--k", "1").out
    assert shown.splitlines()[1].endswith("laser printers <http://t.org/laser>")
    (item,) = map(json.loads, zipfel_command("predict", model, "a beam", "--k", "1", "--json").out.splitlines())
    assert [(tag["label"], tag["title"]) for tag in item["tags"]] == [("http://t.org/laser", "laser printers")]
    reasons = zipfel_command("explain", model, "a beam").out
    assert "path: devices › laser printers" in reasons
    assert "laser printers <http://t.org/laser>" in reasons


@pytest.mark.parametrize(
    ("layout", "header", "row"),
    [
        ("wide", "text,known,label_1,title_1,score_1", "a beam,true,http://t.org/laser,laser printers,"),
        ("tidy", "text,known,rank,label,title,score", "a beam,true,1,http://t.org/laser,laser printers,"),
        ("joined", "text,known,tags,titles,scores", "a beam,true,http://t.org/laser,laser printers,"),
    ],
)
def test_files_of_tags_have_titles(zipfel_command, model, library, tmp_path, layout, header, row):
    out = tmp_path / "tags.csv"
    outcome = zipfel_command(
        "predict", model, "--input", library / "in.csv", "--out", out, "--k", "1", "--layout", layout
    )
    assert outcome.code == 0, outcome.err
    lines = out.read_text().splitlines()
    assert lines[0] == header
    assert lines[1].startswith(row)


def test_parquet_and_the_report_of_labels_have_titles(zipfel_command, model, library, tmp_path):
    import pyarrow.parquet

    out = tmp_path / "tags.parquet"
    outcome = zipfel_command("predict", model, "--input", library / "in.csv", "--out", out, "--k", "1")
    assert outcome.code == 0, outcome.err
    assert pyarrow.parquet.read_table(out).to_pylist()[0]["titles"] == ["laser printers"]
    labels = tmp_path / "labels.csv"
    outcome = zipfel_command("evaluate", model, library / "c.tsv", "--holdout", "0", "--per-label", labels)
    assert outcome.code == 0, outcome.err
    rows = labels.read_text().splitlines()
    assert rows[0].endswith(",threshold,title")
    assert next(row for row in rows if row.startswith("http://t.org/ink")).endswith(',"ink, and printers"')
    assert "Level 2 of the hierarchy" in outcome.out


def test_parents_none_reads_a_thesaurus_whose_hierarchy_has_a_cycle(zipfel_command, library, tmp_path):
    cycle = tmp_path / "cycle.ttl"
    cycle.write_text(THESAURUS + "@prefix a: <http://t.org/> .\na:device skos:broader a:ink .\n")
    words = ("data", "info", library / "c.tsv", "--label-texts", cycle)
    refused = zipfel_command(*words)
    assert refused.code == 2
    assert "cycle.ttl: the hierarchy of labels has a cycle" in refused.err.splitlines()[-1]
    assert "levels of the hierarchy" in zipfel_command(*words[:-1], library / "t.ttl").out
    outcome = zipfel_command(*words, "--parents", "none")
    assert outcome.code == 0, outcome.err
    assert "levels of the hierarchy" not in outcome.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--language", "xx"], "t.ttl: no concept has a name in language 'xx'"),
        (["--label-texts", "no.ttl"], "no.ttl: no such file"),
    ],
)
def test_a_wrong_thesaurus_is_one_line_and_writes_nothing(zipfel_command, library, tmp_path, options, message):
    given = ("--label-texts", library / "t.ttl", *options)
    outcome = zipfel_command("train", library / "c.tsv", "--out", tmp_path / "run", *given)
    assert outcome.code == 2
    assert message in outcome.err.splitlines()[-1]
    assert not (tmp_path / "run").exists()
