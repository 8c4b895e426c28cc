"""Thesauri in SKOS and in Annif's own formats, and Annif's corpora."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from zipfel import Tagger
from zipfel.data.formats import TableSettings, read, write
from zipfel.data.formats.concepts import NAME, Concepts
from zipfel.data.formats.table import thesaurus_of
from zipfel.data.formats.thesaurus import read_thesaurus
from zipfel.data.labels import LabelSpace
from zipfel.errors import ConfigError, DataError

HEAD = """@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix : <http://t.org/> .
"""
TURTLE = (
    HEAD
    + """
:scheme a skos:ConceptScheme ; skos:prefLabel "Devices"@en .
:device a skos:Concept ; skos:prefLabel "devices"@en, "Geräte"@de ; skos:narrower :laser .
:laser a skos:Concept ;
  skos:prefLabel "laser printers"@en, "Laserdrucker"@de ;
  skos:altLabel "beam printers"@en, "Strahldrucker"@de ; skos:hiddenLabel "lazer printers"@en ;
  skos:broader :device ; skos:definition "Draw with a beam."@en ;
  skos:scopeNote "Not for plotters."@en ; skos:note "Since 1976."@en ; skos:notation "681.6" .
:ink a skos:Concept ; skos:prefLabel "Tintendrucker"@de ; skos:altLabel "Tinte"@de, "ink"@en ; skos:broader :device .
:old a skos:Concept ; skos:prefLabel "telex"@en ; owl:deprecated true .
:bare a skos:Concept ; skos:notation "9" .
"""
)
URI = "http://t.org/{}".format


@pytest.fixture
def turtle(tmp_path):
    (tmp_path / "t.ttl").write_text(TURTLE)
    return tmp_path / "t.ttl"


def fields_of(thesaurus, name):
    uri = URI(name)
    return {field: texts[thesaurus.ids.index(uri)] for field, texts in thesaurus.fields.items()}


def test_a_concept_has_name_synonyms_notes_notation_and_parents(turtle):
    thesaurus = read_thesaurus(turtle, "en")
    assert thesaurus.ids == [URI(name) for name in ("device", "laser", "ink", "bare")]
    assert fields_of(thesaurus, "laser") == {
        "prefLabel@en": "laser printers",
        "altLabel": "beam printers | lazer printers",
        "definition": "Draw with a beam.",
        "note": "Not for plotters. Since 1976.",
        "notation": "681.6",
    }
    assert thesaurus.hierarchy is not None
    assert thesaurus.hierarchy.parents == {URI("laser"): (URI("device"),), URI("ink"): (URI("device"),)}


def test_a_concept_without_a_name_in_the_language_has_another_one_and_its_synonyms_in_both(turtle):
    thesaurus = read_thesaurus(turtle, "en")
    assert fields_of(thesaurus, "ink")["prefLabel@en"] == "Tintendrucker"
    assert fields_of(thesaurus, "ink")["altLabel"] == "Tinte | ink"
    assert fields_of(thesaurus, "bare")["prefLabel@en"] == URI("bare")
    assert thesaurus.notes == (
        "4 concepts, names in language 'en'",
        "1 deprecated concepts left out",
        "1 concepts without a name in 'en' have another one instead: 1 de",
        f"1 concepts without any name are called by their URI: {URI('bare')}",
    )


def test_the_language_of_most_names_is_the_default_and_is_said(turtle):
    thesaurus = read_thesaurus(turtle)
    assert thesaurus.language == "de"
    assert thesaurus.notes[0] == "4 concepts, names in language 'de', that of most names (--language)"
    assert fields_of(thesaurus, "laser")["altLabel"] == "Strahldrucker"


def test_a_variant_of_the_language_comes_before_none_and_that_before_others(tmp_path):
    path = tmp_path / "t.ttl"
    path.write_text(
        HEAD + ':a a skos:Concept ; skos:prefLabel "x"@fr, "plain", "colour"@en-GB .\n'
        ':b a skos:Concept ; skos:prefLabel "y"@fr, "nu" ; rdfs:label "label"@en .\n'
        ':c a skos:Concept ; skos:prefLabel "z"@sv, "zz"@fr .\n'
    )
    assert read_thesaurus(path, "en").names == ["colour", "label", "zz"]  # fr is more frequent than sv
    assert read_thesaurus(path, "EN-gb").names == ["colour", "label", "zz"]


@pytest.mark.parametrize("ending", [".nt", ".rdf", ".jsonld", ".ttl.gz"])
def test_all_formats_say_the_same(turtle, tmp_path, ending):
    from pyoxigraph import RdfFormat, parse, serialize

    path = tmp_path / f"other{ending}"
    kinds = {".nt": RdfFormat.N_TRIPLES, ".rdf": RdfFormat.RDF_XML, ".jsonld": RdfFormat.JSON_LD}
    if ending == ".ttl.gz":
        path.write_bytes(gzip.compress(TURTLE.encode()))
    else:
        triples = (quad if ending == ".jsonld" else quad.triple for quad in parse(path=turtle))
        path.write_bytes(serialize(triples, format=kinds[ending]))
    one, other = read_thesaurus(turtle, "en"), read_thesaurus(path, "en")
    assert sorted(other.ids) == sorted(one.ids)
    assert fields_of(other, "laser") == fields_of(one, "laser")
    assert other.hierarchy is not None
    assert other.hierarchy.parents == one.hierarchy.parents
    assert other.notes == one.notes


BROKEN = {
    "t.ttl": (HEAD + ':a a skos:Concept ;\n  skos:prefLabel nix:"a" .\n', ":6: broken Turtle"),
    "t.nt": ('<http://t.org/a> <http://t.org/b> "x" .\n<http://t.org/a> oops .\n', ":2: broken N-Triples"),
    "t.rdf": ('<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n<x', ":2: broken RDF/XML"),
    "cut.rdf": ('<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">\n<r:Description r:about="http://t.org/a"/>\n',
                ":3: broken RDF/XML: the file ends too early"),
    "t.jsonld": ('{"@id": "http://t.org/a",\n', ":2: broken JSON-LD"),
    "remote.jsonld": ('{"@context": "http://t.org/context", "@id": "http://t.org/a"}', ": has a context on the net"),
    "long.nt": (f'<http://t.org/a> <http://t.org/b> "{"x" * (1 << 24)}" .\n', ": holds a text or URI that is too long"),
    "vocabulary.tsv": ("<http://t.org/a>\tone\nhttp://t.org/b two\n", ":2: expected <uri>, a tab and a name"),
    "vocabulary.csv": ("uri,label_en\nhttp://t.org/a,one\nhttp://t.org/a,two\n", ":3: the subject 'http://t.org/a' is"),
    "empty.ttl": (HEAD, ": expected concepts with a name, such as a skos:prefLabel; found no concept"),
    "nameless.ttl": (HEAD + ":a a skos:Concept .\n", "found 1 without one"),
    "blank.ttl": (HEAD + ':a a skos:Concept ; skos:prefLabel " "@en .\n', "found 1 without one"),
    "anonymous.ttl": (HEAD + '[] a skos:Concept ; skos:prefLabel "a"@en .\n', "found 1 without a URI"),
    "deprecated.tsv": ("<http://t.org/a>\n<http://t.org/b>\t\n", "found 2 deprecated"),
    "cycle.ttl": (HEAD + ':a a skos:Concept; skos:prefLabel "a"; skos:broader :b .\n'
                  ":b a skos:Concept; skos:broader :a .\n",
                  ": the hierarchy of labels has a cycle: 'http://t.org/"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_thesaurus_is_one_line_that_says_where(tmp_path, name):
    content, expected = BROKEN[name]
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as raised:
        read_thesaurus(path)
    assert expected in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_a_byte_order_mark_blank_names_and_concepts_without_a_uri(tmp_path):
    path = tmp_path / "t.ttl"
    path.write_text("\ufeff" + HEAD + ':a a skos:Concept ; skos:prefLabel ""@en, "Gerät"@de .\n'
                    ':b a skos:Concept ; skos:prefLabel "b"@en . [] a skos:Concept .\n')  # fmt: skip
    thesaurus = read_thesaurus(path, "en")
    assert dict(zip(thesaurus.ids, thesaurus.names, strict=True)) == {URI("a"): "Gerät", URI("b"): "b"}
    assert "1 concepts without a URI (blank nodes) left out" in thesaurus.notes


def test_more_languages_than_there_are(tmp_path):
    concepts = Concepts()
    for number in range(1 << 15):
        concepts.text(URI("a"), NAME, "a", f"x-{number}")
    assert concepts.thesaurus(tmp_path, "x-7").names == ["a"]


def test_an_unknown_language_is_an_error_that_names_the_known_ones(turtle):
    with pytest.raises(DataError, match=r"t\.ttl: no concept has a name in language 'fi'; known are de, en"):
        read_thesaurus(turtle, "fi")
    with pytest.raises(ConfigError, match="language is that of the names in a thesaurus"):
        thesaurus_of(TableSettings(language="en"))
    table = turtle.with_name("names.csv")
    table.write_text("label,text\na,b\n")
    with pytest.raises(DataError, match=r"names\.csv: not a thesaurus: expected \.ttl"):
        thesaurus_of(TableSettings(label_texts=table, language="en"))


def test_notes_that_are_resources_are_counted(tmp_path):
    path = tmp_path / "t.ttl"
    path.write_text(HEAD + ':a a skos:Concept ; skos:prefLabel "a"@en ; skos:definition [ rdfs:label "x" ] .\n')
    assert "1 definitions and notes are resources, not texts, and are not read" in read_thesaurus(path).notes


# --- Annif's vocabularies and corpora ---------------------------------------------------------------------------------


def test_vocabularies_of_annif(tmp_path):
    tsv, csv = tmp_path / "v.tsv", tmp_path / "v.csv"
    tsv.write_text("<http://t.org/a>\tone\t1.2\n<http://t.org/b>\ttwo\n<http://t.org/gone>\n")
    thesaurus = read_thesaurus(tsv, "en")
    assert thesaurus.fields == {"prefLabel@en": ["one", "two"], "notation": ["1.2", ""]}
    assert thesaurus.ids == ["http://t.org/a", "http://t.org/b"]
    assert "1 deprecated concepts left out" in thesaurus.notes
    csv.write_text("uri,notation,label_en,label_fi\nhttp://t.org/a,1.2,one,yksi\nhttp://t.org/b,,two,kaksi\n")
    assert read_thesaurus(csv, "fi").fields == {"prefLabel@fi": ["yksi", "kaksi"], "notation": ["1.2", ""]}


@pytest.mark.parametrize(("name", "content"), [
    ("v.tsv", "\n<http://t.org/b>\n<http://t.org/a>\tone\n"),
    ("v.csv", '"uri","label_en"\nhttp://t.org/a,one\nhttp://t.org/b,\n'),
    ("v.csv", "uri;notation;label_en\nhttp://t.org/b;;\nhttp://t.org/a;;one\n"),
])  # fmt: skip
def test_a_vocabulary_of_annif_is_known_by_its_first_line(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    thesaurus = thesaurus_of(TableSettings(label_texts=tmp_path / name, language="en"))
    assert thesaurus is not None
    assert (thesaurus.ids, thesaurus.names) == (["http://t.org/a"], ["one"])
    assert "1 deprecated concepts left out" in thesaurus.notes


def corpus(folder):
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("beams of light\non paper")
    (folder / "a.tsv").write_text(f"<{URI('laser')}>\tlaser printers\n<{URI('other')}>\tother\n")
    (folder / "b.txt").write_text("all kinds")
    (folder / "b.key").write_text("devices\nlaser printers\n")
    (folder / "c.txt").write_text("nobody has indexed this")
    (folder / "d.json").write_text(json.dumps({"text": "ink", "subjects": [{"uri": URI("ink")}, {"label": "devices"}]}))


def tags_of(dataset, part="train"):
    Y = dataset.parts[part].Y
    return [{dataset.label_names[label] for label in Y[[row]].indices} for row in range(Y.shape[0])]


def test_a_full_text_folder(turtle, tmp_path):
    corpus(tmp_path / "docs" / "train")
    corpus(tmp_path / "docs" / "test")
    dataset = read(tmp_path / "docs", TableSettings(label_texts=turtle, language="en"))
    expected = [{URI("laser"), URI("other")}, {URI("device"), URI("laser")}, {URI("ink"), URI("device")}]
    assert tags_of(dataset) == tags_of(dataset, "test") == expected
    assert dataset.train.texts == {"text": ["beams of light\non paper", "all kinds", "ink"]}
    assert "train: 1 documents without subjects left out: c.txt" in dataset.notes
    assert "2 subjects are given by their names" in dataset.notes
    unknown = f"1 subjects of 2 tags are not in t.ttl; they stay labels, without a name: {URI('other')}"
    assert unknown in dataset.notes
    assert "t.ttl: 1 deprecated concepts left out" in dataset.notes


def test_train_may_be_the_folder_itself_and_files_without_a_text_are_counted(tmp_path):
    corpus(tmp_path / "docs")
    corpus(tmp_path / "docs" / "val")
    (tmp_path / "docs" / "lonely.tsv").write_text(f"<{URI('ink')}>\tink\n")
    dataset = read(tmp_path / "docs")
    assert [*dataset.parts] == ["train", "validation"]
    assert str(dataset.columns) == "text from text"
    assert "docs: 1 files of subjects without a text left out: lonely.tsv" in dataset.notes
    corpus(tmp_path / "docs" / "dev")
    with pytest.raises(DataError, match=r"docs/val: documents for validation are also in .*docs/dev; keep one of the"):
        read(tmp_path / "docs")


def test_a_folder_of_documents_in_json(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name in "ab":
        document = {"document_id": name, "text": f"ink {name}", "subjects": [{"uri": URI(name)}]}
        (tmp_path / f"{name}.json").write_text("\ufeff" + json.dumps(document))
    dataset = read(tmp_path)
    assert tags_of(dataset) == [{URI("a")}, {URI("b")}]
    assert f"{tmp_path.name}: 1 documents without subjects left out: config.json" in dataset.notes


@pytest.mark.parametrize("line", ["\tlaser printers", "<>\tlaser printers", "<http://t.org/a\ta"])
def test_a_subject_without_a_uri_is_an_error(tmp_path, line):
    corpus(tmp_path / "docs")
    (tmp_path / "docs" / "a.tsv").write_text(f"<{URI('ink')}>\tink\n\n{line}\n")
    with pytest.raises(DataError, match=rf"a\.tsv:3: expected <uri>, a tab and a name; found {re.escape(repr(line))}"):
        read(tmp_path / "docs")


SHORT = {
    "c.tsv": f"beams\t<{URI('laser')}> <{URI('device')}>\nnothing\t\n",
    "first.tsv": f"nothing\t\nbeams\t<{URI('laser')}> <{URI('device')}>\n",
    "c.csv": f"document_id,text,subject_uris\n1,beams,<{URI('laser')}> <{URI('device')}>\n2,nothing,\n",
    "d.csv": f"text,subject_uris\nbeams,{URI('laser')} {URI('device')}\nnothing,\n",
    "c.jsonl": json.dumps({"document_id": "1", "text": "beams", "metadata": {"year": "1976"},
                           "subjects": [{"uri": URI("laser"), "label": "x"}, {"label": "devices"}]})
    + '\n{"text": "nothing", "subjects": []}\n',
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT)
def test_short_texts(turtle, tmp_path, name):
    (tmp_path / name).write_text(SHORT[name])
    dataset = read(tmp_path / name, TableSettings(label_texts=turtle, language="en"))
    tags = dict(zip(dataset.train.texts["text"], tags_of(dataset), strict=True))
    assert tags == {"beams": {URI("laser"), URI("device")}, "nothing": set()}


def test_a_broken_line_of_short_texts(tmp_path):
    path = tmp_path / "c.tsv"
    path.write_text(f"beams\t<{URI('laser')}>\nno tab here\n")
    with pytest.raises(
        DataError, match=r"c\.tsv:2: expected a text, a tab and <uri> <uri> \.\.\.; found 'no tab here'"
    ):
        read(path)
    path.write_text(f"beams\t<{URI('laser')}>\nbeams\t<{URI('laser')}> laser\n")
    with pytest.raises(DataError, match=r"c\.tsv:2: .*found 'laser'"):
        read(path)


# --- Labels of a model ------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus_tsv(tmp_path):
    path = tmp_path / "c.tsv"
    path.write_text("".join(f"beams case {n}\t<{URI('laser')}>\nink case {n}\t<{URI('ink')}>\n" for n in range(20)))
    return path


def test_titles_notations_and_the_hierarchy_survive_writing_and_reading(turtle, corpus_tsv, tmp_path):
    dataset = read(corpus_tsv, TableSettings(label_texts=turtle, language="en"))
    write(dataset, tmp_path / "folder", "csv")
    again = read(tmp_path / "folder")
    for one in (dataset, again):
        labels = LabelSpace.of(one)
        assert labels.title(URI("laser")) == "laser printers"
        assert labels.language == "en"
        assert labels.notations is not None
        assert labels.notations[labels.live[URI("laser")]] == "681.6"
        assert labels.hierarchy is not None
        assert not labels.hierarchy.implied
        saved = LabelSpace.of_json(json.loads(json.dumps(labels.as_json())))
        assert (saved.titles, saved.notations, saved.language) == (labels.titles, labels.notations, "en")
        assert saved.hierarchy is not None
        assert not saved.hierarchy.implied


def test_a_thesaurus_in_python_and_broader_concepts_do_not_outrank_narrower_ones(turtle, tmp_path):
    thesaurus = read_thesaurus(turtle, "en")
    texts, tags = ["beams case", "ink case"] * 20, [[URI("laser")], [URI("ink")]] * 20
    tagger = Tagger("glas", settings={"dimension": 16, "epochs": 20, "min_steps": 1}, text={"min_count": 1})
    tagger.fit(texts, tags, label_texts=thesaurus).save(tmp_path / "model")
    tagger = Tagger.load(tmp_path / "model")
    assert tagger.predict(["beams"], k=1)[0][0].label == URI("laser")
    assert tagger.labels_.title(URI("laser")) == "laser printers"
    assert tagger.labels_.title("unknown") == "unknown"
    assert tagger.labels_.paths(URI("laser")) == [[URI("device"), URI("laser")]]
    assert "Not for plotters." in tagger.labels_.texts[tagger.labels_.live[URI("laser")]]
    filled = tagger.fit(texts, tags, label_texts=thesaurus, ancestors=True)
    assert filled.predict(["beams"], k=2)[0][0].label == URI("device")


def test_other_parents_or_none_replace_the_hierarchy(turtle, corpus_tsv, tmp_path):
    (tmp_path / "up.txt").write_text(f"{URI('laser')}\tlight\n")
    settings = TableSettings(label_texts=turtle, language="en", parents=str(tmp_path / "up.txt"))
    hierarchy = read(corpus_tsv, settings).hierarchy
    assert hierarchy is not None
    assert hierarchy.parents == {URI("laser"): ("light",)}
    assert hierarchy.implied
    (tmp_path / "cycle.ttl").write_text(BROKEN["cycle.ttl"][0])
    with pytest.raises(DataError, match=r"cycle\.ttl: .*or read no hierarchy with --parents none"):
        read(corpus_tsv, TableSettings(label_texts=tmp_path / "cycle.ttl"))
    assert read(corpus_tsv, TableSettings(label_texts=tmp_path / "cycle.ttl", parents="none")).hierarchy is None
