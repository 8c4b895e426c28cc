"""Hierarchies of labels: reading, levels, paths, ancestors, consistent rankings."""

import numpy as np
import pandas
import pytest
from scipy.sparse import csr_array

import zipfel
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import TableSettings
from zipfel.data.hierarchy import Hierarchy, spread, with_hierarchy
from zipfel.data.labels import LabelSpace
from zipfel.data.text import TextSettings, featurized
from zipfel.errors import ConfigError, DataError
from zipfel.types import Ranking

TREE = {"laser": ["printer", "optics"], "inkjet": "printer", "printer": ["hardware"], "wifi": ["network"]}
CSV = "text,tags\nno paper,laser\nslow wifi,wifi;inkjet\nnew optics,optics\n"


@pytest.fixture
def tickets(tmp_path):
    (tmp_path / "tickets.csv").write_text(CSV)
    return tmp_path / "tickets.csv"


def dataset_of(names, rows, **others):
    Y = np.zeros((len(rows), len(names)))
    for row, labels in enumerate(rows):
        Y[row, [names.index(label) for label in labels]] = 1
    part = Part(csr_array(Y), texts={"text": [f"text {row}" for row in range(len(rows))]})
    return Dataset(part, label_names=names, **others)


def tags_of(dataset, part="train"):
    Y, names = dataset.parts[part].Y, dataset.label_names
    return [sorted(names[label] for label in Y.indices[start:end]) for start, end in zip(Y.indptr, Y.indptr[1:])]  # noqa: B905


def test_levels_ancestors_and_paths():
    tree = Hierarchy.of(TREE)
    assert tree.levels == {"optics": 1, "hardware": 1, "network": 1, "printer": 2, "wifi": 2, "inkjet": 3, "laser": 3}
    assert tree.ancestors("laser") == ["printer", "optics", "hardware"]
    assert tree.ancestors("hardware") == tree.ancestors("unknown") == []
    assert tree.paths("laser") == [["optics", "laser"], ["hardware", "printer", "laser"]]
    assert tree.paths("laser", most=1) == [["optics", "laser"]]
    assert tree.paths("unknown") == [["unknown"]]
    assert set(tree.above(["wifi"]).parents) == {"wifi"}
    assert tree.renamed({"printer": "Printers", "wifi": "WLAN"}).paths("inkjet") == [["hardware", "Printers", "inkjet"]]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"a": "a"}, "has a cycle: 'a' › 'a'; remove one of these parents"),
        ({"a": "b", "b": ["x", "c"], "c": "a", "d": "a"}, "has a cycle: .* › .* › .* › "),
        ({f"n{i}": f"n{(i + 1) % 5000}" for i in range(5000)}, "has a cycle: .* › … › "),
    ],
)
def test_cycles_are_refused(parents, message):
    with pytest.raises(DataError, match=message) as caught:
        Hierarchy.of(parents)
    assert len(str(caught.value)) < 600


def test_deep_hierarchies_do_not_exhaust_the_stack():
    chain = Hierarchy.of({str(i): str(i + 1) for i in range(3000)})
    assert chain.levels["0"] == 3001
    assert len(chain.paths("0")[0]) == 3001


def test_paths_whose_number_is_exponential_are_not_all_walked():
    up = {f"{level}{side}": [f"{level - 1}a", f"{level - 1}b"] for level in range(1, 60) for side in "ab"}
    paths = Hierarchy.of({**up, "59a": ["58a", "58b", "0a"]}).paths("59a", most=5)
    assert [len(path) for path in paths] == [2, 60, 60, 60, 60]
    assert len({*map(tuple, paths)}) == 5


# Filling in ancestors


def test_ancestors_become_labels_and_tags():
    dataset = dataset_of(["laser", "printer", "wifi"], [["laser"], ["wifi"], ["printer"], []])
    plain = with_hierarchy(dataset, Hierarchy.of(TREE))
    assert (plain.label_names, tags_of(plain)) == (dataset.label_names, tags_of(dataset))
    filled = with_hierarchy(dataset, Hierarchy.of(TREE), ancestors=True)
    assert filled.label_names == ["laser", "printer", "wifi", "hardware", "network", "optics"]
    assert tags_of(filled) == [
        ["hardware", "laser", "optics", "printer"],
        ["network", "wifi"],
        ["hardware", "printer"],
        [],
    ]
    assert (plain.hierarchy.filled, filled.hierarchy.filled) == (False, True)
    again = with_hierarchy(filled, filled.hierarchy, ancestors=True)
    assert tags_of(again) == tags_of(filled)


def test_texts_features_and_filtered_pairs_grow_with_the_labels():
    names = ["laser", "wifi"]
    Y, pairs = csr_array(np.eye(2)), csr_array(np.array([[0.0, 1], [0, 0]]))
    part = Part(Y, X=csr_array(np.eye(2)), filtered=pairs)
    dataset = Dataset(part, label_names=names, label_texts={"about": ["light", "waves"]}, Z=csr_array(np.eye(2)))
    filled = with_hierarchy(dataset, Hierarchy.of({"laser": "printer"}), ancestors=True)
    assert filled.label_texts == {"about": ["light", "waves", ""]}
    assert filled.Z.toarray().tolist() == [[1, 0], [0, 1], [0, 0]]
    assert filled.train.filtered.toarray().tolist() == [[0, 1, 0], [0, 0, 0]]
    assert filled.train.Y.toarray().tolist() == [[1, 0, 1], [0, 1, 0]]
    assert any("1 of 2 labels are not in the hierarchy" in note for note in filled.notes)


def test_a_hierarchy_of_other_labels_is_refused():
    dataset = dataset_of(["a", "b"], [["a"], ["b"]])
    with pytest.raises(DataError, match=r"no label of the data set has a parent: .* names 'x', and .* 'a'"):
        with_hierarchy(dataset, Hierarchy.of({"x": "y"}))
    with pytest.raises(DataError, match="the hierarchy is empty"):
        with_hierarchy(dataset, Hierarchy.of({}))


# Reading


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tree.txt", "# a comment\nlaser\tprinter\toptics\n\ninkjet\tprinter\r\nprinter\thardware\nwifi\tnetwork\n"),
        ("tree.csv", "label,parent\nlaser,printer\nlaser,optics\ninkjet,printer\nprinter,hardware\nwifi,network\nx,\n"),
        ("tree.tsv", "label\tParents\nlaser\tprinter;optics\ninkjet\tprinter\nprinter\thardware\nwifi\tnetwork\n"),
        ("tree.jsonl", '{"label": "laser", "parents": ["printer", "optics"]}\n{"label":"inkjet","parents":"printer"}\n'
                       '{"label": "printer", "parents": ["hardware"]}\n{"label": "wifi", "parents": ["network"]}\n'),
    ],
)  # fmt: skip
def test_files_of_parents(tickets, name, content):
    path = tickets.with_name(name)
    path.write_bytes(content.encode())
    dataset = zipfel.read(tickets, TableSettings(sep=";", parents=str(path), ancestors=True))
    assert dataset.hierarchy.levels == Hierarchy.of(TREE).levels
    assert tags_of(dataset)[1] == ["hardware", "inkjet", "network", "printer", "wifi"]


def test_a_column_of_the_table_of_labels(tickets):
    labels = tickets.with_name("about.csv")
    labels.write_text(
        "label,about,parent\nlaser,light,printer;optics\ninkjet,ink,printer\nprinter,,hardware\nwifi,,net\n"
    )
    dataset = zipfel.read(tickets, TableSettings(sep=";", label_texts=labels, parents="Parent"))
    assert dataset.hierarchy.paths("laser") == [["optics", "laser"], ["hardware", "printer", "laser"]]
    assert dataset.label_texts == {"about": ["light", "ink", "", "", ""]}  # parents are not read as text
    frame = pandas.read_csv(labels)
    dataset = zipfel.read(tickets, TableSettings(sep=";", label_texts=frame, parents="parent"))
    assert dataset.hierarchy.paths("inkjet") == [["hardware", "printer", "inkjet"]]


def test_a_folder_with_a_table_of_labels(tmp_path):
    (tmp_path / "train.csv").write_text(CSV)
    (tmp_path / "labels.csv").write_text("label,parent\nlaser,printer\nwifi,network\n")
    dataset = zipfel.read(tmp_path, TableSettings(sep=";", parents="parent", ancestors=True))
    assert tags_of(dataset)[0] == ["laser", "printer"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tree.txt", "laser\tprinter\nalone\n", r"tree\.txt:2: expected label<TAB>parent, found 'alone'"),
        ("tree.txt", "laser\tprinter\nwifi\t\n", r"tree\.txt:2: expected label<TAB>parent, found 'wifi'"),
        ("tree.txt", "laser\tprinter\nprinter\tlaser\n", r"tree\.txt: the hierarchy of labels has a cycle: "),
        (
            "tree.csv",
            "laser,printer\nwifi,net\n",
            r"tree\.csv:1: expected labels in the first column and a column 'par",
        ),
        ("tree.csv", "label,parent\n,a\n", r"tree\.csv:2: the name of the label is empty"),
        (
            "tree.txt",
            "a\tb\n",
            "no label of the data set has a parent: the hierarchy names 'a', and the first label is",
        ),
    ],
)
def test_broken_files_of_parents(tickets, name, content, message):
    path = tickets.with_name(name)
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        zipfel.read(tickets, TableSettings(sep=";", parents=str(path)))


def test_a_missing_file_of_parents(tickets):
    with pytest.raises(DataError, match=r"no/such: no such file$"):
        zipfel.read(tickets, TableSettings(parents="no/such"))
    tickets.with_name("about.csv").write_text("label,about\nlaser,light\n")
    with pytest.raises(
        DataError, match=r"paernt: no such file, and about\.csv has no such column \(columns: label, about"
    ):
        zipfel.read(tickets, TableSettings(label_texts=tickets.with_name("about.csv"), parents="paernt"))
    with pytest.raises(ConfigError, match="ancestors needs a hierarchy; set it with parents"):
        zipfel.read(tickets, TableSettings(ancestors=True))


def test_lines_of_parents_may_be_called_tsv(tickets):
    path = tickets.with_name("tree.tsv")
    path.write_text("laser\tprinter\ninkjet\tprinter\n")
    lines = zipfel.read(tickets, TableSettings(sep=";", parents=str(path))).hierarchy
    path.write_text("name\tParent\nlaser\tprinter\ninkjet\tprinter\n")
    table = zipfel.read(tickets, TableSettings(sep=";", parents=str(path))).hierarchy
    assert lines.parents == table.parents == {"laser": ("printer",), "inkjet": ("printer",)}


# Written folders


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("ancestors", [False, True])
@pytest.mark.parametrize("format", ["csv", "jsonl", "lf", "split", "npz", "repository"])
def test_written_folders_keep_the_hierarchy(tickets, format, ancestors, gzip):
    path = tickets.with_name("tree.txt")
    path.write_text('laser\tprinter\tli;ght\ninkjet\tprinter\nprinter\t# "hardware", big\nunused\tother\n')
    dataset = zipfel.read(tickets, TableSettings(sep=";", parents=str(path), ancestors=ancestors))
    features = featurized(dataset, TextSettings(min_count=1)) if format in ("split", "npz", "repository") else dataset
    target = tickets.with_name("written")
    zipfel.write(features, target, format, gzip)
    again = zipfel.read(target, TableSettings(sep=";"))
    assert again.hierarchy.parents == {
        "laser": ("printer", "li;ght"), "inkjet": ("printer",), "printer": ('# "hardware", big',)
    }  # fmt: skip
    assert again.hierarchy.filled == ancestors
    assert list(again.label_names) == list(dataset.label_names)
    assert (again.train.Y != dataset.train.Y).nnz == 0
    assert any("hierarchy of labels from parents.csv" in note for note in again.notes)


def test_a_given_hierarchy_replaces_that_of_the_folder_and_ancestors_can_be_filled_later(tickets):
    path = tickets.with_name("tree.txt")
    path.write_text("laser\tprinter\n")
    target = tickets.with_name("written")
    zipfel.write(zipfel.read(tickets, TableSettings(sep=";", parents=str(path))), target, "csv")
    assert "printer" in zipfel.read(target, TableSettings(ancestors=True)).label_names
    path.write_text("laser\toptics\n")
    assert zipfel.read(target, TableSettings(parents=str(path))).hierarchy.parents == {"laser": ("optics",)}


def test_a_data_set_without_a_hierarchy_has_no_file_of_it(tickets):
    target = tickets.with_name("written")
    zipfel.write(zipfel.read(tickets, TableSettings(sep=";")), target, "csv")
    assert not (target / "parents.csv").exists()
    assert zipfel.read(target).hierarchy is None


def test_a_name_with_outer_blanks_cannot_be_written(tickets):
    dataset = zipfel.read(tickets, TableSettings(sep=";"))
    dataset = with_hierarchy(dataset, Hierarchy.of({"laser": " printer"}))
    with pytest.raises(DataError, match=r"label name ' printer' is empty or has outer blanks, which parents\.csv"):
        zipfel.write(dataset, tickets.with_name("written"), "csv")
    assert not tickets.with_name("written").exists()


# Rankings


def slow_consistent(scores, names, tree):
    """State the rule as a loop: a label's score is the highest of its own and those below it."""
    raised = dict(scores)
    for name, score in scores.items():
        for above in tree.ancestors(name):
            if above in names:
                raised[above] = max(raised.get(above, -np.inf), score)
    return raised


def test_consistent_rankings_equal_the_slow_rule():
    numbers = np.random.default_rng(0)
    names = [f"l{i}" for i in range(30)]
    up = {f"l{i}": [f"l{j}" for j in numbers.choice(i, min(i, 2), replace=False)] for i in range(1, 30)}
    shuffled = numbers.permutation(names).tolist()  # so that parents have any id
    tree = Hierarchy.of({name: above for name, above in up.items() if above})
    labels = LabelSpace(shuffled, [1] * 30, hierarchy=tree)
    scores = numbers.choice(np.linspace(0.1, 1, 7), (20, 30)).astype(np.float32)
    rows, columns = np.indices(scores.shape).reshape(2, -1)
    ranking = Ranking.of_pairs(rows, columns, scores.ravel(), 20, 8)
    made = labels.consistent(ranking)
    for row in range(20):
        given = {shuffled[label]: score for label, score in zip(ranking.ids[row], ranking.scores[row], strict=True)}
        wanted = slow_consistent(given, set(names), tree)
        best = sorted(wanted.values(), reverse=True)[:8]
        np.testing.assert_allclose(made.scores[row], best, rtol=1e-5)
        got = dict(zip((shuffled[label] for label in made.ids[row]), made.scores[row], strict=True))
        assert len(got) == 8
        for name, score in got.items():
            assert score == pytest.approx(wanted[name], rel=1e-5)
            for above in tree.ancestors(name):
                assert got[above] > score  # and so before it: also where they tie
    assert (np.diff(made.scores) < 0).all()


def test_filtered_and_padded_pairs():
    labels = LabelSpace(["child", "parent", "other"], [1] * 3, hierarchy=Hierarchy.of({"child": "parent"}))
    ranking = Ranking(
        np.array([[0, -1], [2, -1], [0, 1]]), np.array([[0.5, -np.inf], [0.3, -np.inf], [0.5, 0.4]], "f4")
    )
    made = labels.consistent(ranking)
    assert made.ids.tolist() == [[1, 0], [2, -1], [1, 0]]
    filtered = csr_array(np.array([[0, 1, 0]] * 3))
    assert labels.consistent(ranking, filtered).ids.tolist() == [[0, -1], [2, -1], [0, -1]]
    assert LabelSpace(["a"], [1]).consistent(ranking) is ranking


def test_spread_takes_the_highest_score_of_a_node():
    membership = csr_array(np.array([[1, 0], [1, 1], [0, 0]]))
    ranking = Ranking(np.array([[1, 2, 0]]), np.array([[0.9, 0.8, 0.7]], "f4"))
    made = spread(ranking, membership)
    assert made.ids.tolist() == [[0, 1, -1]]
    assert made.scores[0, :2].tolist() == pytest.approx([0.9, 0.9])


def test_labels_keep_their_hierarchy_when_saved_and_renamed():
    labels = LabelSpace(["laser", "printer"], [1, 1], hierarchy=Hierarchy.of(TREE, filled=True))
    again = LabelSpace.of_json(labels.as_json())
    assert again.paths("laser") == labels.paths("laser")
    assert again.hierarchy.filled
    assert labels.renamed({"printer": "Printers"}).paths("laser")[1] == ["hardware", "Printers", "laser"]
    old = {key: value for key, value in LabelSpace(["a"], [1]).as_json().items() if key != "hierarchy"}
    assert LabelSpace.of_json(old).paths("a") == []
