"""Catalogue records in MARC 21 as data sets."""

from __future__ import annotations

import gzip
from pathlib import Path

import pymarc
import pytest

from zipfel.data.formats import TableSettings, read
from zipfel.data.formats.table_files import open_table
from zipfel.errors import DataError

LASER, INK = "http://t.org/laser", "http://t.org/ink"


def field(tag: str, *pairs: str):
    codes = [pymarc.Subfield(pair[0], pair[1:]) for pair in pairs]
    return pymarc.Field(tag=tag, indicators=[" ", " "], subfields=codes)


def record(uid: str, *fields) -> bytes:
    made = pymarc.Record(force_utf8=True)
    made.add_field(*([pymarc.Field(tag="001", data=uid)] if uid else []), *fields)
    return made.as_marc()


RECORDS = (
    record(
        "r1", field("245", "aBeams of light :", "bprinting für all /", "cA. Author."),
        field("520", "aHow a drum works."), field("650", "aLaser printers.", f"0(uri){LASER}"),
        field("650", "aDevices", "xHistory", "y1976."),
        field("650", "aDevices", "xHistory", "y1976."), field("651", "aFinland", "0(DE-588)4017243-0"),
    ),
    record("", field("245", "aInk"), field("650", "aInkjet printers", f"1{INK}")),
    record("r3", field("245", "aNobody has indexed this")),
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "books.mrc"
    path.write_bytes(b"".join(RECORDS))
    return path


def test_a_record_has_title_abstract_and_subjects_by_uri_or_name(file):
    table = open_table(file)
    assert [values for _, values in table.rows(["uid", "title", "abstract", "subjects"])] == [
        ["r1", "Beams of light : printing für all", "How a drum works.",
         [LASER, "Devices -- History -- 1976", "Finland"]],
        ["record 2", "Ink", "", [INK]],
        ["r3", "Nobody has indexed this", "", []],
    ]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_records_are_a_data_set_whose_subjects_a_thesaurus_names(file, tmp_path, packed):
    (tmp_path / "v.tsv").write_text(
        f"<{LASER}>\tlaser printers\n<{INK}>\tinkjet printers\n<http://t.org/fi>\tFinland\n"
    )
    if packed:
        (tmp_path / "books.mrc.gz").write_bytes(gzip.compress(file.read_bytes()))
        file = tmp_path / "books.mrc.gz"
    dataset = read(file, TableSettings(label_texts=tmp_path / "v.tsv", language="en"))
    assert dataset.train.texts == {
        "title": ["Beams of light : printing für all", "Ink", "Nobody has indexed this"],
        "abstract": ["How a drum works.", "", ""],
    }
    tags = [{dataset.label_names[label] for label in dataset.train.Y[[row]].indices} for row in range(3)]
    assert tags == [{LASER, "http://t.org/fi", "Devices -- History -- 1976"}, {INK}, set()]
    assert any(note.startswith("1 subjects of 1 tags are not in v.tsv") for note in dataset.notes)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", "holds no MARC record"), (b"this is no record", "record 1: broken MARC: "),
     (RECORDS[0] + RECORDS[1][:60], "record 2: broken MARC: "), (RECORDS[0] + b"00x00", "record 2: broken MARC: "),
     (RECORDS[0] + b"00000" + RECORDS[1][5:], "record 2: broken MARC: ")],
)  # fmt: skip
def test_a_broken_file_is_one_line_that_says_where(tmp_path, content, error):
    path = tmp_path / "books.mrc"
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: {error}")
    assert "\n" not in str(raised.value)


def test_a_repeated_number_of_a_record_is_an_error(tmp_path):
    path = tmp_path / "books.mrc"
    path.write_bytes(RECORDS[0] * 2)
    with pytest.raises(DataError, match=r"books\.mrc: row 1: uid 'r1' is already in row 0"):
        read(path)
