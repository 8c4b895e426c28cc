"""A hierarchy of labels from a file to tags, metrics and explanations."""

from __future__ import annotations

import json

import pytest

from zipfel import Tagger
from zipfel.errors import DataError

SMALL = ["--model", "glas", "--set", "dimension=32", "--set", "epochs=20", "--set", "min_steps=1", "--min-count", "1"]
WORDS = {
    "laser": "light beam drum",
    "inkjet": "ink drops colour",
    "wifi": "radio waves slow",
    "vpn": "tunnel login key",
}
PARENTS = "laser\tprinter\tlight\ninkjet\tprinter\nprinter\thardware\nwifi\tnetwork\nvpn\tnetwork\n"


@pytest.fixture
def tickets(tmp_path):
    rows = [f"{words} case{number % 7},{tag}" for number in range(30) for tag, words in WORDS.items()]
    (tmp_path / "tickets.csv").write_text("text,tags\n" + "\n".join(rows) + "\n")
    (tmp_path / "tree.txt").write_text(PARENTS)
    return tmp_path / "tickets.csv"


def consistent(tagger, text):
    scores = dict(tagger.predict([text], k=9)[0])
    for label, score in scores.items():
        for above in tagger.labels_.hierarchy.ancestors(label):
            if above in tagger.labels_.live:
                assert scores[above] >= score
    return scores


def test_ancestors_are_trained_predicted_judged_and_shown(zipfel_command, tickets, tmp_path):
    options = ["--parents", tmp_path / "tree.txt"]
    outcome = zipfel_command("train", tickets, "--out", tmp_path / "run", *options, "--ancestors", *SMALL)
    assert outcome.code == 0, outcome.err
    tagger = Tagger.load(tmp_path / "run")
    assert tagger.classes_ == ["inkjet", "laser", "vpn", "wifi", "hardware", "light", "network", "printer"]
    for words in WORDS.values():
        consistent(tagger, words)
    best = [tag.label for tag in tagger.predict(["light beam drum"], k=4)[0]]
    assert set(best) == {"hardware", "light", "printer", "laser"}
    assert best.index("hardware") < best.index("printer") < best.index("laser")
    # The model remembers the hierarchy and that ancestors were filled in.
    for more in ([], [*options, "--ancestors"]):
        outcome = zipfel_command("evaluate", tmp_path / "run", tickets, "--json", tmp_path / "out.json", *more)
        assert outcome.code == 0, outcome.err
        assert "Level 1 of the hierarchy: 3 labels, 23 points" in outcome.out
        assert "Level 3 of the hierarchy: 2 labels" in outcome.out
        levels = json.loads((tmp_path / "out.json").read_text())["levels"]
        assert [level["level"] for level in levels] == [1, 2, 3]
        assert [level["labels"] for level in levels] == [3, 3, 2]
        assert all(level["P@1"] > 90 and level["R@5"] > 99 for level in levels)
    page = tmp_path / "page.html"
    assert zipfel_command("report", tmp_path / "run", tickets, "--out", page).code == 0
    for level in levels:
        title = f"Level {level['level']} of the hierarchy: {level['labels']} labels, {level['points']} points"
        table = page.read_text().partition(f"<caption>{title}</caption>")[2].partition("</table>")[0]
        for name in ("P@1", "nDCG@3", "R@5"):
            assert f"<td>{level[name]:.2f}</td>" in table, (title, name)
    outcome = zipfel_command("explain", tmp_path / "run", "light beam", "--label", "laser")
    assert "path: light › laser" in outcome.out
    assert "path: hardware › printer › laser" in outcome.out
    outcome = zipfel_command("explain", tmp_path / "run", "light beam", "--label", "laser", "--json")
    assert json.loads(outcome.out)["paths"] == [["light", "laser"], ["hardware", "printer", "laser"]]


def test_without_ancestors_only_paths_and_levels_use_the_hierarchy(zipfel_command, tickets, tmp_path):
    options = ["--parents", tmp_path / "tree.txt"]
    for name, more in (("plain", []), ("tree", options)):
        assert zipfel_command("train", tickets, "--out", tmp_path / name, *more, *SMALL).code == 0
    plain, tree = Tagger.load(tmp_path / "plain"), Tagger.load(tmp_path / "tree")
    assert plain.predict(list(WORDS.values())) == tree.predict(list(WORDS.values()))  # no parent is a label
    outcome = zipfel_command("evaluate", tmp_path / "tree", tickets)
    assert "Level 1 of the hierarchy: 3 labels" in outcome.out
    assert "Level" not in zipfel_command("evaluate", tmp_path / "plain", tickets).out
    assert "path" not in zipfel_command("explain", tmp_path / "plain", "light beam", "--label", "laser").out


def test_a_split_folder_keeps_the_hierarchy(zipfel_command, tickets, tmp_path):
    """Split without ancestors, train with them: evaluate must fill them in too, though the folder has a hierarchy."""
    outcome = zipfel_command("data", "split", tickets, tmp_path / "folder", "--parents", tmp_path / "tree.txt")
    assert outcome.code == 0, outcome.err
    assert "levels of the hierarchy" in zipfel_command("data", "info", tmp_path / "folder").out
    outcome = zipfel_command("train", tmp_path / "folder", "--out", tmp_path / "run", "--ancestors", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "note: hierarchy of labels from parents.csv" in outcome.err
    figures = []
    for data in (tmp_path / "folder", tickets):  # the same 23 points; the table has no hierarchy of its own
        outcome = zipfel_command("evaluate", tmp_path / "run", data, "--json", tmp_path / "out.json")
        assert outcome.code == 0, outcome.err
        figures.append(json.loads((tmp_path / "out.json").read_text()))
    assert figures[0]["points"] == figures[1]["points"] == 23
    for name in ("P@1", "nDCG@3", "R@5", "levels"):
        assert figures[0][name] == figures[1][name], name


def test_cycles_are_one_line(zipfel_command, tickets, tmp_path):
    (tmp_path / "tree.txt").write_text("laser\tprinter\nprinter\tlaser\n")
    outcome = zipfel_command("train", tickets, "--out", tmp_path / "run", "--parents", tmp_path / "tree.txt", *SMALL)
    assert outcome.code == 2
    assert "tree.txt: the hierarchy of labels has a cycle: 'laser' › 'printer' › 'laser'; remove" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_in_python(tmp_path):
    texts, tags = list(WORDS.values()) * 5, [[name] for name in WORDS] * 5
    parents = {"laser": ["printer", "light"], "inkjet": "printer", "wifi": "network"}
    tagger = Tagger("glas", settings={"dimension": 16, "epochs": 20}, text={"min_count": 1}, validation=0)
    tagger.fit(texts, tags, parents=parents, ancestors=True)
    tagger.save(tmp_path / "model")
    for one in (tagger, Tagger.load(tmp_path / "model")):
        assert set(consistent(one, "light beam drum")) == {*WORDS, "printer", "light", "network"}
    tagger.remove_labels(["printer"])
    assert "printer" not in consistent(tagger, "light beam drum")
    tagger.rename_labels({"light": "optics"})
    assert tagger.labels_.paths("laser") == [["printer", "laser"], ["optics", "laser"]]
    with pytest.raises(DataError, match="has a cycle"):
        tagger.fit(texts, tags, parents={"laser": "laser"})
    with pytest.raises(DataError, match="the hierarchy is empty"):
        tagger.fit(texts, tags, ancestors=True)
