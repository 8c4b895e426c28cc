"""ICD-10-CM: a hand-made list with hand-worked phrases, then the real one."""

import re
from importlib.metadata import files

import numpy as np
import pytest

from zipfel.data import icd10cm
from zipfel.errors import DataError, MissingDependencyError

FILLERS = "".join(f"<diag><name>A{i:02}</name><desc>Infection {i}</desc></diag>" for i in range(11))

TABULAR = f"""<?xml version="1.0" encoding="utf-8"?>
<ICD10CM.tabular>
 <introduction><introSection><instruction><note>see J40 (J40)</note></instruction></introSection></introduction>
 <chapter><name>1</name><desc>All</desc>
  <includes><note>belongs to no code</note></includes>
  <excludes2><note>brain injury (S06.-)</note></excludes2>
  <sectionIndex><sectionRef first="J09" last="J18" id="J09-J18">Influenza</sectionRef></sectionIndex>
  <section id="A00-A11"><desc>Fillers</desc>{FILLERS}</section>
  <section id="J20-S06"><desc>Everything else</desc>
   <includes><note>belongs to no code either</note></includes>
   <excludes1><note>cough due to  smoke
     (J40)</note></excludes1>
   <diag><name>J20</name><desc>Acute bronchitis</desc>
    <includes><note>acute and subacute bronchitis (with) tracheitis</note></includes>
    <excludes1>
     <note>bronchitis (in):</note>
     <note>bronchitis NOS (J40)</note>
     <note>bronchitis, chronic or not specified (J40, J44.-)</note>
     <note>any infection (A00-A10)</note>
     <note>bronchitis with infection (J40, A00-A10)</note>
     <note>infections of some kind (A00-A09)</note>
     <note>chronic bronchitis as classified in J44 (J44)</note>
     <note>jaw pain J40</note>
     <note>deleted disease (J20.77)</note>
     <note>half deleted disease (J20.77, J40)</note>
     <note>effusion (malignant) (J91.0))</note>
     <note>(J40)</note>
    </excludes1>
    <useAdditionalCode>
     <note>code, if applicable, to identify:</note>
     <note>code, if applicable, to identify severe sepsis (R65.2-)</note>
     <note>code to (A01, A02) identify infectious agent.</note>
     <note>code for any associated melena (K92.1), or  hematemesis (K92.0), if known</note>
    </useAdditionalCode>
    <sevenChrNote><note>add to code J20 (J20)</note></sevenChrNote>
    <diag><name>J20.5</name><desc>Acute bronchitis due to respiratory syncytial virus</desc>
     <inclusionTerm><note>Acute bronchitis due to RSV</note><note>Bronchitis NOS</note></inclusionTerm>
    </diag>
   </diag>
   <diag><name>J40</name><desc>Bronchitis, not specified as acute or chronic</desc></diag>
   <diag><name>J44</name><desc>Other chronic obstructive pulmonary disease</desc>
    <inclusionTerm>
     <note>Conditions classifiable to J40</note>
     <note>Obstruction due to:</note>
     <note>This category is to be used for the lung.</note>
     <note>PR-</note>
     <note>Lack of vitamin B12.</note>
    </inclusionTerm>
   </diag>
   <diag><name>J91</name><desc>Pleural effusion</desc>
    <diag><name>J91.0</name><desc>Malignant pleural effusion</desc></diag>
   </diag>
   <diag><name>K92</name><desc>Other diseases of digestive system</desc>
    <excludes2>
     <note>gastrointestinal hemorrhage (K92.0-K92.2)</note>
     <note>bleeding - code to the bleeding (J91.- -K92.1)</note>
     <note>vomiting (of (black) blood) (K92.0 to K92.1) in adults</note>
    </excludes2>
    <diag><name>K92.0</name><desc>Hematemesis</desc></diag>
    <diag><name>K92.1</name><desc>Melena</desc></diag>
    <diag><name>K92.2</name><desc>Gastrointestinal hemorrhage, unspecified</desc></diag>
    <diag><name>K92.8</name><desc>Other</desc></diag>
   </diag>
   <diag><name>R65</name><desc>Symptoms of inflammation</desc>
    <diag><name>R65.2</name><desc>Severe sepsis</desc></diag>
   </diag>
   <diag><name>S06</name><desc>Intracranial injury</desc>
    <codeFirst><note>concussion (S06.0X0A)</note></codeFirst>
    <codeAlso><note>, if applicable, lacerated brain (S06.- with seventh character A)</note></codeAlso>
    <diag><name>S06.0</name><desc>Concussion</desc>
     <diag placeholder="true"><name>S06.0X</name><desc>Concussion</desc>
      <diag><name>S06.0X0</name><desc>Concussion without loss of consciousness</desc></diag>
     </diag>
    </diag>
   </diag>
  </section>
 </chapter>
</ICD10CM.tabular>"""

PHRASES = {
    "acute and subacute bronchitis (with) tracheitis": "J20",
    "Acute bronchitis due to RSV": "J20 J20.5",
    "Bronchitis NOS": "J20 J20.5 J40",  # a term of J20.5 and a note that cites J40, in another case
    "PR-": "J44",
    "Lack of vitamin B12": "J44",
    "brain injury": "S06",
    "cough due to smoke": "J40",
    "bronchitis, chronic or not specified": "J40 J44",
    "infections of some kind": "A00 A01 A02 A03 A04 A05 A06 A07 A08 A09",  # the widest range that counts
    "half deleted disease": "J40",
    "effusion (malignant)": "J91 J91.0",
    "severe sepsis": "R65 R65.2",
    "infectious agent": "A01 A02",
    "melena, or hematemesis": "K92 K92.0 K92.1",
    "gastrointestinal hemorrhage": "K92 K92.0 K92.1 K92.2",
    "bleeding": "J91 K92 K92.0 K92.1",  # J91 as a whole; of K92 only what lies in the range (and above it)
    "vomiting (of (black) blood) in adults": "K92 K92.0 K92.1",
    "concussion": "S06 S06.0 S06.0X S06.0X0",
    "lacerated brain": "S06",
}


@pytest.fixture
def source(tmp_path):
    """Return a function that writes a list and returns its path."""

    def write(text=TABULAR):
        path = tmp_path / "list.xml"
        path.write_text(text)
        return path

    return write


def rows(part, label_names):
    """Return phrase -> codes of a part."""
    named = [" ".join(label_names[label] for label in part.Y[[row]].indices) for row in range(len(part))]
    return dict(zip(part.texts["title"], named, strict=True))


def test_phrases_and_codes_of_a_small_list(source):
    points = icd10cm.phrases(icd10cm.read(source()))
    assert {point.text: " ".join(sorted(point.codes)) for point in points.values()} == PHRASES
    assert list(points) == [point.text.lower() for point in points.values()]


def test_parts_and_labels_of_a_small_list(source):
    data = icd10cm.from_xml(source())
    # By their hashes five phrases are test. Of concussion's codes train has S06 only, of severe sepsis's none.
    in_test = {
        "acute and subacute bronchitis (with) tracheitis": "J20",
        "brain injury": "S06",
        "concussion": "S06",
        "half deleted disease": "J40",
    }
    assert rows(data.test, data.label_names) == in_test
    in_train = PHRASES.keys() - in_test.keys() - {"severe sepsis"}
    assert rows(data.train, data.label_names) == {phrase: PHRASES[phrase] for phrase in in_train}
    assert data.notes == (
        "5 codes without a phrase in train dropped, and 1 test phrases that have only such codes",
    )  # R65, R65.2, S06.0, S06.0X, S06.0X0
    assert data.label_names == sorted({code for phrase in in_train for code in PHRASES[phrase].split()})


def test_label_text_is_the_description_then_those_above(source):
    data = icd10cm.from_xml(source())
    texts = dict(zip(data.label_names, data.label_texts["title"], strict=True))
    assert texts["J20"] == "Acute bronchitis"
    assert texts["J20.5"] == "Acute bronchitis due to respiratory syncytial virus; Acute bronchitis"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("D06", "D07.3", "D06 D07.0 D07.3"),
        ("D07.0", "D07.3", "D07.0 D07.3"),
        ("D06", "D07", "D06 D07"),
        ("D06.1", "D07", "D06.1 D07"),
        ("D07", "D06", ""),
        ("E00", "E99", ""),
    ],
)
def test_between(first, last, expected):
    order = ["D06", "D06.0", "D06.1", "D06.10", "D07", "D07.0", "D07.3", "D07.30", "D07.4"]
    assert icd10cm.between(first, last, order) == expected.split()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("C44.1021", "C44.1021"),  # seven characters of its own
        ("S06.0X0A", "S06.0X0"),
        ("W16.01XA", "W16.01"),
        ("X34.XXXA", "X34"),
        ("S06.0X", ""),  # the list has what is below, but not the code
        ("B12", ""),
    ],
)
def test_known(code, expected):
    assert icd10cm.known(code, ["C44.1021", "S06", "S06.0X0", "W16.01", "X34"]) == expected.split()


@pytest.mark.parametrize(
    ("note", "phrase"),
    [
        ("chronic obstructive bronchitis (J44.-)", "chronic obstructive bronchitis"),
        ("malignant neoplasm of jaw bone (lower) (C41.1)", "malignant neoplasm of jaw bone (lower)"),
        ("external cause code (W88-W90, X39.0-) to identify cause", "cause"),
        ("code(s) to identify any associated degree of disability (F70-F79)", "degree of disability"),
        ("the type of heart failure, if known (I50.-)", "type of heart failure"),
        ("theft (X00)", "theft"),
        ("any-site pain (R52)", "any-site pain"),
        (", if applicable: cerebral infarction (I63.-)", "cerebral infarction"),
        ("disorder due to known condition (F09)", "disorder due to known condition"),
    ],
)
def test_phrase_of_a_note(note, phrase):
    assert icd10cm.phrase_of(note) == phrase


def test_what_is_no_tabular_list_is_refused(source):
    with pytest.raises(DataError, match=r"list\.xml:2: not an XML file"):
        icd10cm.from_xml(source("<a>\n<b></a>"))
    with pytest.raises(DataError, match=r"list\.xml: not a tabular list"):
        icd10cm.from_xml(source("<html><diag/></html>"))
    with pytest.raises(DataError, match="'J20' below None lacks <name> or <desc>"):
        icd10cm.from_xml(source("<x><section><diag><name>J20</name></diag></section></x>"))
    with pytest.raises(DataError, match="no phrases for train"):
        icd10cm.from_xml(source("<x><section><diag><name>J20</name><desc>Cold</desc></diag></section></x>"))


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(icd10cm, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"ICD-10-CM data set needs simple-icd-10-cm.*zipfel\[demo\]"):
        icd10cm.load()


def test_a_package_without_the_list_is_an_error(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(icd10cm, "find_spec", lambda name: Spec)
    with pytest.raises(DataError, match=r"has no data/\*\.xml"):
        icd10cm.load()


@pytest.fixture(scope="module")
def real():
    return icd10cm.load()


@pytest.fixture(scope="module")
def tabular():
    (path,) = [file.locate() for file in files("simple-icd-10-cm") if file.match("*.xml")]
    return icd10cm.read(path)


def phrases_of(part):
    return [" ".join(text.lower().split()) for text in part.texts["title"]]


def test_real_sizes(real):
    assert real.name == "icd10cm"
    assert real.sizes.points == pytest.approx(14_704, rel=0.05)
    assert len(real.test) == pytest.approx(4_727, rel=0.05)
    assert real.sizes.labels == pytest.approx(11_202, rel=0.05)
    assert (real.label_counts > 0).all()
    assert all((np.diff(part.Y.indptr) > 0).all() for part in real.parts.values())


def test_real_is_deterministic(real):
    again = icd10cm.load()
    assert again.label_names == real.label_names
    assert again.label_texts == real.label_texts
    for part, other in zip(real.parts.values(), again.parts.values(), strict=True):
        assert part.texts == other.texts
        assert part.uids == other.uids
        assert (part.Y != other.Y).nnz == 0


def test_real_phrases_are_in_one_part_only(real):
    phrases = phrases_of(real.train) + phrases_of(real.test)
    assert len(set(phrases)) == len(phrases)
    uids = [*real.train.uids, *real.test.uids]
    assert len(set(uids)) == len(uids)


def test_real_phrases_hold_words_and_no_codes(real, tabular):
    code = re.compile(r"(?<![A-Za-z0-9])([A-Z][0-9][0-9A-Z])(\.[0-9A-Z]*)?-?(?![A-Za-z0-9])")
    for text in [*real.train.texts["title"], *real.test.texts["title"]]:
        assert re.search("[A-Za-z]", text)
        assert text == text.strip()
        assert text.count("(") == text.count(")")
        assert not [match[0] for match in code.finditer(text) if match[1] in tabular.descriptions], text


def test_real_rows_have_all_parents(real, tabular):
    labels = {code: label for label, code in enumerate(real.label_names)}
    for part in real.parts.values():
        for row in np.split(part.Y.indices, part.Y.indptr[1:-1]):
            parents = {tabular.parents[real.label_names[label]] for label in row} - {None}
            assert {labels[code] for code in parents} <= set(row.tolist())
    assert real.label_names == sorted(real.label_names)


def test_real_examples(real):
    filed = {
        phrase.lower(): codes for part in real.parts.values() for phrase, codes in rows(part, real.label_names).items()
    }
    assert filed["acute bronchitis due to rsv"] == "J20 J20.5"  # an inclusion term
    assert filed["braxton hicks contractions"] == "O47"  # an includes note
    assert filed["chronic obstructive bronchitis"] == "J44"  # excludes: (J44.-)
    assert filed["gastrointestinal hemorrhage"] == "K92 K92.0 K92.1 K92.2"  # (K92.0-K92.2)
    assert filed["vitamin b12 deficiency"] == "E53 E53.8"
    assert "mycoses" not in filed  # (B35-B49) is too wide
    texts = dict(zip(real.label_names, real.label_texts["title"], strict=True))
    assert texts["J20.5"] == "Acute bronchitis due to respiratory syncytial virus; Acute bronchitis"
