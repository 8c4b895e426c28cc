"""Parsers of the benchmark data sets on excerpts made by hand, and the split and files they share."""

from __future__ import annotations

import doctest
import json
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.datasets import __main__ as command
from benchmarks.datasets import corpus, debian_ja, edict, icons, linux, manpages, metamath, occupations, wordnet
from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, output
from zipfel.data.formats import read


def labels_of(built: Corpus) -> dict[str, set[str]]:
    return {point.uid: set(point.labels) for point in built.points}


@pytest.mark.parametrize("name", [*command.NAMES, "corpus", "packages"])
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(import_module(f"benchmarks.datasets.{name}")).failed == 0


def test_metamath_labels_a_theorem_with_what_its_proof_cites() -> None:
    built = metamath.parse("""
        $c ( ) -> |- wff $.  $v ph ps $.  wph $f wff ph $.
        wi $a wff ( ph -> ps ) $.
        ${ mp.1 $e |- ph $.  mp.2 $e |- ( ph -> ps ) $.
           $( Detach. $) ax-mp $a |- ps $. $}
        ${ t.1 $e |- ph $.
           t1 $p |- ( ps -> ph ) $= ( wi ax-mp ) ABCD $.
           t1OLD $p |- ( ps -> ph ) $= ( ax-mp ) AB $. $}
        $( was $p |- ph $= ( ax-mp ) A $. $)
        t2 $p |- ( ph -> ph ) $= ( wi t1 ax-mp later ) AB $.
    """)
    assert labels_of(built) == {"t1": {"ax-mp"}, "t2": {"t1", "ax-mp"}}
    assert built.points[0][1:3] == ("( ps -> ph )", "ph")
    assert built.points[1].content == ""  # the scope of t.1 has ended
    assert built.label_texts["ax-mp"] == "ps"


def test_wordnet_labels_a_sense_with_two_levels_of_hypernyms() -> None:
    built = wordnet.parse([
        "  1 This software and database is being provided",
        "00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | that which is",
        "00000002 03 n 01 animal 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | a living thing",
        "00000003 03 n 02 domestic_dog 0 dog 0 001 @ 00000002 n 0000 | a barker; \"the dog barked\"; \"a dog's life\" ",
        "00000004 03 n 01 Laika 0 001 @i 00000003 n 0000 | first in orbit",
    ])  # fmt: skip
    found = labels_of(built)
    assert found["n00000003"] == {"n00000002", "n00000001"}
    assert found["n00000004"] == {"n00000003", "n00000002"}
    assert built.points[2][1:3] == ("a barker", "the dog barked; a dog's life")
    assert built.label_texts["n00000003"] == "domestic dog, dog"


def test_edict_joins_spellings_and_splits_translations() -> None:
    built = edict.parse([
        "隘路 [あいろ] /(n) (1) narrow path/(n) (2) bottleneck/(P)/",
        "あい路 [あいろ] /(n) (1) narrow path/(n) (2) bottleneck/",
        "あえか /(adj-na) (poet) delicate/fleeting/",
        "not an entry",
    ])  # fmt: skip
    assert labels_of(built) == {"隘路 あいろ": {"narrow", "path", "bottleneck"}, "あえか": {"delicate", "fleeting"}}
    assert built.points[0][1:3] == ("隘路 あい路", "あいろ")


def test_manpages_label_a_page_with_its_see_also() -> None:
    pages = {
        "read(2)": '.TH READ 2\n.SH NAME\nread \\- read from a file\n.SH DESCRIPTION\n.\\" a note\n.IX Header "x"\n'
        "reads \\fIcount\\fP bytes\n.SH SEE ALSO\n.BR openat (2),\n.BR fread (3),\n.BR read (2)\n",
        "mmap(2)": ".Dd May\n.Sh NAME\n.Nm mmap\n.Nd map files\n.Sh DESCRIPTION\nMaps.\n.Sh SEE ALSO\n"
        ".Xr read 2 ,\n.Xr open 2\n",
        "creat(2)": ".so man2/open.2\n",
        "open(2)": '.SH "NAME"\nopen \\- open a file\n.SH "SEE ALSO"\n\\fBcreat\\fR\\|(2), BIO_new(3ssl)\n',
    }
    built = manpages.parse(pages, {"openat(2)": "open(2)"})
    assert labels_of(built) == {
        "read(2)": {"open(2)", "fread(3)"},
        "mmap(2)": {"read(2)", "open(2)"},
        "open(2)": {"BIO_new(3)"},
    }
    assert built.points[0][1:3] == ("read - read from a file", "DESCRIPTION reads count bytes")
    assert built.label_texts["mmap(2)"] == "mmap map files"


def test_linux_labels_code_with_headers_and_hides_them() -> None:
    files = [(f"drivers/{name}.c", "#include <linux/module.h>\nint a;\n") for name in "abcdefghi"]
    includes = '#include <linux/module.h>\n#include <linux/usb.h>\n#include "own.h"\n#define X \\\n 1\n'
    source = f'// old\n{includes}int f(void) {{ return g("text"); }} /* end */'
    built = linux.parse([*files, ("drivers/usb.c", source)])
    assert labels_of(built) == {"drivers/usb.c": {"linux/usb.h"}}
    assert built.points[0].content == "int f ( void ) { return g ( ) ; }"


def test_debian_ja_joins_descriptions_and_tags() -> None:
    built = debian_ja.parse(
        """Package: chess
Section: games
Tag: game::board, implemented-in::c,
 role::program

Package: untagged
Description-md5: 0

Package: chess
Description-ja: チェス
 盤面が
 .
 あります。

Package: untagged
Description-ja: なし
""".splitlines()
    )
    assert labels_of(built) == {"chess": {"game::board", "implemented-in::c", "role::program"}}
    assert built.points[0][1:3] == ("チェス", "盤面が あります。")


def test_icons_leave_out_tags_that_are_in_the_name() -> None:
    sets = {
        "m": icons.material(
            [{"name": "bell-ring", "tags": ["Alert"], "author": "A B", "aliases": ["ring", "alarm-clock"]}]
        ),
        "t": icons.tabler({"bell": {"tags": ["bell", 7, "Sound"]}, "dot": {"tags": ["dot"]}}),
        "l": icons.lucide({"bell": ["alarm clock"]}),
        "a": icons.awesome({"bell": {"label": "Bell", "search": {"terms": ["chime"]}}}),
    }
    built = icons.parse(sets)
    assert labels_of(built) == {
        "m/bell-ring": {"alarm clock"},
        "t/bell": {"7", "sound"},
        "l/bell": {"alarm clock"},
        "a/bell": {"chime"},
    }
    assert built.points[0][1:3] == ("bell ring", "m, Alert, A B")


def test_occupations_have_codes_of_three_editions() -> None:
    rows = [
        ["REC\nNO", "SOC90", "SOC 2000", "SOC 2010", "INDEXOCC", "IND", "ADD"],
        [1.0, 103.0, 2441.0, "2429", "Officer", "(Cabinet Office)", ""],
        [2.0, 104.0, 2441.0, 2429.0, "Officer", "(Cabinet Office)", ""],
        [3.0, "", "}}}}", "", "Nobody", "", ""],
    ]
    built = occupations.parse(rows)
    assert labels_of(built) == {"Officer (Cabinet Office)": {"1990:103", "1990:104", "2000:2441", "2010:2429"}}


def planted(count: int) -> list[Point]:
    return [Point(f"p{i}", f"title {i}", "", frozenset({"all", f"pair{i // 2}", f"only{i}"})) for i in range(count)]


def test_split_is_seeded_by_uid_and_drops_rare_labels() -> None:
    parts = corpus.split(planted(1000))
    assert 150 < len(parts.test) < 250
    assert len(parts.train) + len(parts.test) == 1000
    train = {point.uid for point in parts.train}
    both = {f"pair{i}" for i in range(500) if {f"p{2 * i}", f"p{2 * i + 1}"} <= train}
    assert parts.labels == sorted({"all", *both})
    more = corpus.split(reversed(planted(1100)))
    assert {point.uid for point in parts.test} <= {point.uid for point in more.test}
    assert len(corpus.split(planted(1000), largest=100).train) < 100
    with pytest.raises(ValueError, match="p3"):
        corpus.split([*planted(5), planted(5)[3]])


def test_command_writes_a_data_set_that_zipfel_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [*planted(50), Point("all", "a label itself", "text", frozenset({"all"}))]
    monkeypatch.setattr(
        edict, "fetch", lambda _: (Corpus(points, {"all": "each one"}), [Package("edict", "1.0", tmp_path)])
    )
    out = tmp_path / "out"
    command.main(["edict", str(out)])
    dataset = read(str(out))
    assert dataset.test is not None
    assert dataset.label_names is not None
    uids = [*(dataset.train.uids or ()), *(dataset.test.uids or ())]
    assert sorted(uids) == sorted(point.uid for point in points)
    assert dict(zip(dataset.label_names, (dataset.label_texts or {})["title"], strict=True))["all"] == "each one"
    about = json.loads((out / "sources.json").read_text())
    assert about["packages"] == {"edict": "1.0"}
    assert (about["train"], about["labels"], about["filter_pairs"]) == (len(dataset.train), len(dataset.label_names), 1)
    lines = [(out / f"filter_labels_{name}.txt").read_text().split() for name in ("train", "test")]
    (row, label), part = (lines[0], dataset.train) if lines[0] else (lines[1], dataset.test)
    assert (part.uids or [])[int(row)] == dataset.label_names[int(label)] == "all"
    with pytest.raises(SystemExit, match="not empty"):
        command.main(["edict", str(out)])


@pytest.mark.parametrize("words", [[], ["edict"], ["nothing", "folder"]])
def test_command_names_what_it_takes(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="NAME is one of debian_ja"):
        command.main(words)


def test_failed_downloads_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no-such-client is not installed"):
        output(["no-such-client"], tmp_path)
    with pytest.raises(SystemExit, match="failed"):
        output(["ls", "no-such-file"], tmp_path)
