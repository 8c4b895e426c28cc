"""Tables that people have: Excel, JSON arrays, zipped CSV, and headers in any case."""

import csv
import datetime
import decimal
import json
import zipfile

import openpyxl
import orjson
import pandas
import pyarrow.parquet
import pytest

import zipfel
from zipfel.data.formats import TableSettings, format_of
from zipfel.data.formats.table_files import Table, write_table
from zipfel.errors import DataError, MissingDependencyError

COLUMNS = TableSettings(sep=";")
CSV = "text,tags\nno paper,printer\nslow wifi,network;slow\n"


def check(dataset):
    assert dataset.label_names == ["network", "printer", "slow"]
    assert list(dataset.train.texts.values()) == [["no paper", "slow wifi"]]
    assert dataset.train.Y.toarray().tolist() == [[0, 1, 0], [1, 0, 1]]


def workbook(path, rows, *sheets):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for name in sheets:
        book.create_sheet(name).append(["other"])
    book.save(path)
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


# Excel


def test_the_first_sheet_of_a_workbook(tmp_path):
    rows = [["text", "tags"], ["no paper", "printer"], [], ["slow wifi", "network;slow"]]
    check(zipfel.read(workbook(tmp_path / "book.xlsx", rows, "Notes"), COLUMNS))


def test_cells_of_a_workbook(tmp_path):
    rows = [["text", None, "tags"], [2, "aside", 7], [None, None, 7.0], ["#N/A", None, "x"], [1.5], ["=A1", None, "y"]]
    dataset = zipfel.read(workbook(tmp_path / "book.xlsx", rows))
    assert dataset.train.texts == {"text": ["2", "", "", "1.5", ""]}  # nobody has computed the formula yet
    assert dataset.label_names == ["7", "x", "y"]
    assert dataset.train.Y.sum(axis=1).tolist() == [1, 1, 1, 0, 1]


def test_errors_in_a_workbook_name_its_row(tmp_path):
    rows = [["uid", "text", "tags"], ["a", "x", "t"], [], ["a", "y", "t"]]
    with pytest.raises(DataError, match=r"book\.xlsx:4: uid 'a' is already in line 2"):
        zipfel.read(workbook(tmp_path / "book.xlsx", rows))
    for name, rows, message in [
        ("twice", [["text", "text", "tags"]], r"twice\.xlsx:1: 2 columns are called 'text'"),
        ("empty", [], r"empty\.xlsx:1: empty: expected a row with the column names in the first sheet"),
        ("bare", [["text", "tags"]], r"bare\.xlsx:1: holds no rows"),
        ("other", [["words", "tags"]], r"other\.xlsx:1: no text column found.*columns: words, tags"),
    ]:
        with pytest.raises(DataError, match=message):
            zipfel.read(workbook(tmp_path / f"{name}.xlsx", rows))


@pytest.mark.parametrize(
    "content", [b"", b"text,tags\na,b\n", b"PK\x03\x04 and no more", b"\xd0\xcf\x11\xe0 encrypted"]
)
def test_what_is_no_workbook(tmp_path, content):
    (tmp_path / "book.xlsx").write_bytes(content)
    with pytest.raises(DataError, match=r"book\.xlsx: not an Excel workbook, damaged, or protected: "):
        zipfel.read(tmp_path / "book.xlsx")


def test_old_spreadsheets_and_a_missing_package(tmp_path, monkeypatch):
    (tmp_path / "book.xls").write_bytes(b"x")
    with pytest.raises(DataError, match=r"book\.xls: this kind of spreadsheet cannot be read; save it as \.xlsx or"):
        zipfel.read(tmp_path / "book.xls")
    path = workbook(tmp_path / "book.xlsx", [["text", "tags"]])
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(MissingDependencyError, match=r"reading Excel needs openpyxl: pip install 'zipfel\[tables\]'"):
        zipfel.read(path)


def test_a_folder_of_workbooks_is_read_and_not_written(tmp_path):
    folder = tmp_path / "tickets"
    folder.mkdir()
    for part in ("train", "test"):
        workbook(folder / f"{part}.xlsx", [["text", "tags"], ["no paper", "printer"], ["slow wifi", "network;slow"]])
    workbook(folder / "labels.xlsx", [["label", "about"], ["printer", "paper"]])
    dataset = zipfel.read(folder, COLUMNS)
    assert (len(dataset.test), dataset.label_names) == (2, ["printer", "network", "slow"])
    assert dataset.label_texts == {"about": ["paper", "", ""]}
    with pytest.raises(DataError, match=r"format xlsx can be read, not written; choose one of lf, .*parquet with"):
        zipfel.write(dataset, tmp_path / "out", "xlsx")
    assert not (tmp_path / "out").exists()


# JSON


def test_a_json_array(tmp_path):
    rows = [{"text": "no paper", "tags": ["printer"]}, {"tags": ["slow", "network"], "text": "slow wifi"}]
    path = tmp_path / "tickets.json"
    for content in (orjson.dumps(rows), b"\xef\xbb\xbf \n" + orjson.dumps(rows, option=orjson.OPT_INDENT_2)):
        path.write_bytes(content)
        check(zipfel.read(path))
    pandas.DataFrame(rows).to_json(path, orient="records")
    check(zipfel.read(path))
    pandas.DataFrame(rows).to_json(path, orient="records", lines=True)  # JSONL by another name
    check(zipfel.read(path))
    assert format_of(path) == "json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"tickets\.json: empty: expected an array of JSON objects"),
        ("", r"tickets\.json:1: empty"),
        ('[{"text": "a", "tags": "b"}, 3]', r"tickets\.json: row 1: expected a JSON object, found int"),
        ("[3]", r"tickets\.json: row 0: expected a JSON object, found int"),
        ('[{"text": "a", "tags": "b"}, {"text": "a"}]', r"tickets\.json: row 1: no key 'tags' \(keys: text\)"),
        ('[{"text": "a",\n "tags" "b"}]', r"tickets\.json:2: broken JSON: "),
        ('{"text": {"0": "a"}, "tags": {"0": "b"}}', r"tickets\.json:1: expected text, found dict"),
    ],
)
def test_broken_json(tmp_path, content, message):
    (tmp_path / "tickets.json").write_text(content)
    with pytest.raises(DataError, match=message):
        zipfel.read(tmp_path / "tickets.json")


# Zip


@pytest.mark.parametrize("name", ["tickets.csv", "tickets.tsv", "in/Tickets.CSV"])
def test_a_zipped_table(tmp_path, name):
    content = CSV.replace(",", "\t") if name.endswith("tsv") else CSV
    path = zipped(tmp_path / "a.zip", {name: content, "__MACOSX/._tickets.csv": "x", "in/.DS_Store": "x", "in/": ""})
    check(zipfel.read(path, COLUMNS))
    assert format_of(path) == name[-3:].lower()


def test_a_zipped_table_of_pandas_and_zipped_tables_in_a_folder(tmp_path):
    folder = tmp_path / "tickets"
    folder.mkdir()
    frame = pandas.DataFrame({"text": ["no paper", "slow wifi"], "tags": ["printer", "network;slow"]})
    frame.to_csv(folder / "train.csv.zip", index=False)
    check(zipfel.read(folder / "train.csv.zip", COLUMNS))
    check(zipfel.read(folder, COLUMNS))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "expected a zip file with one table, found nothing"),
        ({"a.csv": CSV, "b.csv": CSV}, r"expected a zip file with one table, found a\.csv, b\.csv; unpack it first"),
        ({"a.pdf": "x"}, r"not a data set; expected a folder, a \.txt file or a table \(\.csv, "),
    ],
)
def test_zip_files_without_one_table(tmp_path, files, message):
    with pytest.raises(DataError, match=rf"a\.zip: {message}"):
        zipfel.read(zipped(tmp_path / "a.zip", files))


def test_broken_zip_files(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a.csv": CSV * 1000})
    content = path.read_bytes()
    for broken in (b"text,tags\na,b\n", content[:-40], content[:60] + b"\0" * 40 + content[100:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"a\.zip: broken zip file: "):
            zipfel.read(path)


# Headers in any case


def test_headers_in_any_case(tmp_path):
    path = tmp_path / "tickets.csv"
    for header in ("Text,Tags", "TEXT,LABELS", " text , Label"):
        path.write_text(CSV.replace("text,tags", header))
        check(zipfel.read(path, COLUMNS))
        check(zipfel.read(path, TableSettings(text=("text",), sep=";")))
    check(
        zipfel.read(pandas.DataFrame({"Text": ["no paper", "slow wifi"], "Tags": [["printer"], ["slow", "network"]]}))
    )


def test_parts_may_differ_in_case_and_the_exact_name_comes_first(tmp_path):
    (tmp_path / "train.csv").write_text(CSV.replace("text,tags", "Text,TAGS"))
    (tmp_path / "test.csv").write_text(CSV)
    dataset = zipfel.read(tmp_path, COLUMNS)
    assert dataset.train.texts == dataset.test.texts
    table = Table("t", ["Text", "text", "TEXT", "Tags"], lambda wanted: iter(()))
    assert (table.column("text"), table.column("tExt"), table.column("tags")) == ("text", None, "Tags")
    with pytest.raises(DataError, match="no column 'tExt'"):
        table.own(["tExt"])


def test_files_to_tag_may_be_of_these_kinds(tmp_path):
    from zipfel.cli.inputs import opened_input
    from zipfel.data.source import Source

    workbook(tmp_path / "a.xlsx", [["Text"], ["no paper"]])
    (tmp_path / "a.json").write_text('[{"TEXT": "no paper"}]')
    zipped(tmp_path / "a.zip", {"a.csv": "id,Text\n1,no paper\n"})
    for path in tmp_path.iterdir():
        for text in (None, "text"):
            assert [row.text for row in opened_input(path, Source(), text).rows()] == ["no paper"]


# --- Further columns, as `data split` and `predict` copy them ---------------------------------------------------------

ODD = {
    "price": [decimal.Decimal("1.50"), None],
    "share": [float("nan"), 1.5],
    "day": [datetime.date(2024, 1, 2), None],
    "when": [datetime.datetime(2024, 1, 2, 3, 4), None],
    "done": [True, None],
    "sizes": [[1, 2], None],
    "about": [{"a": decimal.Decimal("2.5")}, None],
    "took": [datetime.timedelta(seconds=3), None],
    "large": [2**70, 1],
    "mixed": [1, "a"],
    "names": [["x"], ["y", "z"]],
}


def test_any_cell_is_written_as_csv(tmp_path):
    write_table(ODD, tmp_path / "odd.csv")
    with (tmp_path / "odd.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first == {
        "price": "1.50", "share": "", "day": "2024-01-02", "when": "2024-01-02T03:04:00", "done": "true",
        "sizes": "[1,2]", "about": '{"a":"2.5"}', "took": "0:00:03", "large": str(2**70), "mixed": "1",
        "names": '["x"]',
    }  # fmt: skip
    empty = {name for name, cell in second.items() if cell == ""}
    assert empty == {"price", "day", "when", "done", "sizes", "about", "took"}
    assert (second["share"], second["mixed"]) == ("1.5", "a")


def test_any_cell_is_written_as_jsonl(tmp_path):
    write_table(ODD, tmp_path / "odd.jsonl")
    first, second = map(json.loads, (tmp_path / "odd.jsonl").read_text().splitlines())
    assert first["share"] is None
    assert (first["price"], first["day"], first["sizes"], first["large"]) == ("1.50", "2024-01-02", [1, 2], str(2**70))
    assert (second["share"], second["mixed"], second["names"]) == (1.5, "a", ["y", "z"])


def test_any_cell_is_written_as_parquet(tmp_path):
    write_table(ODD, tmp_path / "odd.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "odd.parquet").to_pydict()
    for name in ("price", "day", "when", "done", "sizes", "took", "names"):
        assert table[name] == ODD[name], name
    assert table["mixed"] == ["1", "a"]
    assert table["large"] == [str(2**70), "1"]
